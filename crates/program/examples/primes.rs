//! Counts the primes below a number with a team that follows its claim, and says on standard error when
//! the claim changes: `cargo run -p corewise-program --example primes -- 20000000`. Start two of them
//! beside `corewise manage` and watch them share the machine.

use corewise_program::{Claim, Cpus, Numa, Team};
use std::sync::atomic::{AtomicU64, Ordering};

fn main() {
    let below = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let below: usize = below.unwrap_or(2_000_000);
    let claim = Claim::join("primes");
    claim.on_change(|now| {
        let whose = if now.managed { "managed" } else { "unmanaged" };
        eprintln!("{} threads, {whose}", now.threads);
    });
    let granted = claim.invade(Cpus(1..=64), Numa::Any);
    eprintln!("begins with {} threads", granted.threads);
    let primes = AtomicU64::new(0);
    Team::new(&claim).parallel_for(2..below, 1000, |numbers| {
        let found = numbers.filter(|&number| is_prime(number)).count() as u64;
        primes.fetch_add(found, Ordering::Relaxed);
    });
    claim.retreat(1);
    println!("{}", primes.into_inner());
}

fn is_prime(number: usize) -> bool {
    let divisors = (2..).take_while(|d| d * d <= number);
    divisors.into_iter().all(|d| !number.is_multiple_of(d))
}
