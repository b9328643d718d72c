//! smoke
#![allow(clippy::unwrap_used)]
mod common;
use common::*;
use corewise_launch::*;
#[test]
fn smoke() {
    eprintln!("{:?}", Sandbox::availability());
    if !sandbox_available() {
        return;
    }
    let s = Sandbox::prepare().unwrap();
    for script in [
        "id >&2; cat /proc/self/mountinfo >&2; ls -la / /dev /proc/self/fd /mnt >&2; ps ax >&2; touch /etc/xx /tmp/xx; grep Cap /proc/self/status >&2; ulimit -a >&2; umask >&2; ip a >&2; echo 1 >/proc/sys/vm/drop_caches; pwd >&2; touch hello",
        "exit 3",
        "kill -9 $$",
    ] {
        let mut p = Probe::start(&s, &shell(script), &Spool::none()).unwrap();
        p.release().unwrap();
        let e = p.wait_timeout(LONG).unwrap();
        eprintln!(
            "{e:?} setup {} exec {:?} {:?}\n{}",
            p.setup_ns(),
            p.exec_ns(),
            p.limits(),
            String::from_utf8_lossy(&p.stderr_tail())
        );
    }
}
