use corewise_defer::deferred;

#[deferred]
trait Empty {}

#[deferred]
trait Generic<T> {
    fn call(&self, value: u32);
}

#[deferred]
trait Above: Clone {
    fn call(&self, value: u32);
}

#[deferred(name = 1)]
trait Arguments {
    fn call(&self, value: u32);
}

fn main() {}
