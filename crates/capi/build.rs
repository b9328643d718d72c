//! How libcorewise.so is linked. Its soname is the number of its interface, not of its version: programs
//! record it. It cannot be unloaded, because threads of it may be running.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcorewise.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
