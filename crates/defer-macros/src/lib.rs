//! `#[deferred]`, which makes the buffer of deferred calls from a trait. It is documented, and used, where it
//! is exported: in `corewise-defer`.

mod calls;
mod write;

use proc_macro::TokenStream;
use syn::{ItemTrait, parse_macro_input};

/// Makes the buffer of deferred calls from a trait.
///
/// From `trait Calls` it makes a type `CallsBuffer`, of the trait's visibility: parallel arrays for the
/// method and the arguments of each call, where the first arguments of one type share an array, and so do
/// the second ones. With it come implementations of the trait:
///
/// - for `Environment<CallsBuffer>` and `Producer<CallsBuffer>`, whose methods store the call;
/// - for `&T` and `Arc<T>` of every `T` that implements it, so that targets can be shared.
///
/// A method takes `&self` and arguments that own what they need (`Send + 'static`), and returns nothing.
/// Generic parameters, default bodies, associated items and supertraits are compile errors. An attribute's
/// argument says by which name the library is known where it is not `::corewise_defer`:
/// `#[deferred(crate = some::path)]`.
#[proc_macro_attribute]
pub fn deferred(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let library = parse_macro_input!(arguments as calls::Library);
    let item = parse_macro_input!(item as ItemTrait);
    match calls::Calls::of(&item) {
        Ok(calls) => write::all(&item, &calls, &library.path).into(),
        Err(error) => {
            let error = error.into_compile_error();
            quote::quote!(#item #error).into()
        }
    }
}
