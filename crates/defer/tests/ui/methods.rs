use corewise_defer::deferred;

#[deferred]
trait Calls {
    fn returns(&self) -> u32;
    fn changes(&mut self);
    fn consumes(self);
    fn without_self(number: u32);
    fn borrows(&self, name: &str);
    fn generic<T: Send>(&self, value: T);
    fn anything(&self, value: impl Send);
    fn with_body(&self) {}
    async fn later(&self);
    const LIMIT: u32;
}

fn main() {}
