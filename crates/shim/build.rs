//! Gives the preloaded library the name by which oneTBB looks for its permit manager: the loader answers
//! `dlopen("libtcm.so.1")` with a library of that name which is loaded already, wherever it came from.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtcm.so.1");
}
