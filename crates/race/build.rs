//! Gives the library the name of gcc's ThreadSanitizer: a program that is linked with that finds this one
//! loaded already, and does not load the other.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtsan.so.2");
}
