//! What is written for a trait.

use crate::calls::{Argument, Calls};
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{FnArg, ItemTrait, Path, TraitItem, TraitItemFn};

pub(crate) fn all(item: &ItemTrait, calls: &Calls, library: &Path) -> TokenStream {
    let buffer = buffer(item, calls, library);
    let execute = execute(item, calls, library);
    let fronts = fronts(item, calls, library);
    let shared = shared(item, calls);
    let checks = checks(calls);
    quote! {
        #item
        #buffer
        #execute
        #fronts
        #shared
        #checks
    }
}

fn buffer_name(item: &ItemTrait) -> syn::Ident {
    format_ident!("{}Buffer", item.ident)
}

fn column(index: usize) -> syn::Ident {
    format_ident!("column_{index}")
}

/// The arrays.
fn buffer(item: &ItemTrait, calls: &Calls, library: &Path) -> TokenStream {
    let visibility = &item.vis;
    let name = buffer_name(item);
    let doc = format!(
        "The buffer of deferred calls of [`{}`]: `Environment<{name}>` stores them.",
        item.ident
    );
    let fields: Vec<_> = (0..calls.columns.len()).map(column).collect();
    let types = &calls.columns;
    let numbers = 0_u8..=255;
    let arms = numbers.zip(&calls.methods).map(|(number, method)| {
        let columns = method.arguments.iter().map(|a| column(a.column));
        let moved = method.arguments.iter().map(|a| column(a.column));
        (
            quote!(#number => { #( self.#columns.discard(index); )* }),
            quote!(#number => { #( to.#moved.put(to_index, self.#moved.take(index)); )* }),
        )
    });
    let (discards, moves): (Vec<_>, Vec<_>) = arms.unzip();
    quote! {
        #[doc = #doc]
        #visibility struct #name {
            methods: #library::Column<u8>,
            #( #fields: #library::Column<#types>, )*
        }

        impl ::core::clone::Clone for #name {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl ::core::marker::Copy for #name {}

        // SAFETY: every use of the columns goes by the same numbers of methods, which say what was stored.
        #[allow(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
        unsafe impl #library::Columns for #name {
            fn place(places: &mut #library::Places) -> Self {
                #name {
                    methods: places.column(),
                    #( #fields: places.column(), )*
                }
            }

            unsafe fn relocate(&self, index: usize, to: &Self, to_index: usize) {
                let method = self.methods.take(index);
                to.methods.put(to_index, method);
                match method {
                    #( #moves )*
                    _ => ::core::unreachable!("no such method was stored"),
                }
            }

            unsafe fn discard(&self, index: usize) {
                match self.methods.take(index) {
                    #( #discards )*
                    _ => ::core::unreachable!("no such method was stored"),
                }
            }
        }
    }
}

/// The loop that executes stored calls.
fn execute(item: &ItemTrait, calls: &Calls, library: &Path) -> TokenStream {
    let name = buffer_name(item);
    let trait_name = &item.ident;
    let numbers = 0_u8..=255;
    let arms = numbers.zip(&calls.methods).map(|(number, method)| {
        let function = &method.name;
        let names: Vec<_> = method.arguments.iter().map(|a| &a.name).collect();
        let columns = method.arguments.iter().map(|a| column(a.column));
        quote! {
            #number => {
                #( let #names = self.#columns.take(index); )*
                #trait_name::#function(target, #( #names ),*);
            }
        }
    });
    quote! {
        // SAFETY: `next` is counted up before the arguments are moved out, each once, in order.
        #[allow(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
        unsafe impl<Target: #trait_name + ?::core::marker::Sized> #library::Execute<Target> for #name {
            unsafe fn execute(&self, next: &mut u32, len: u32, target: &Target) {
                while *next < len {
                    let index = *next as usize;
                    *next += 1;
                    match self.methods.take(index) {
                        #( #arms )*
                        _ => ::core::unreachable!("no such method was stored"),
                    }
                }
            }
        }
    }
}

/// The trait on what stores calls.
fn fronts(item: &ItemTrait, calls: &Calls, library: &Path) -> TokenStream {
    let name = buffer_name(item);
    let trait_name = &item.ident;
    let functions = functions(item);
    let bodies = (0_u8..=255).zip(&calls.methods).map(|(number, method)| {
        let columns = method.arguments.iter().map(|a| column(a.column));
        let names = method.arguments.iter().map(|a| &a.name);
        quote! {
            // SAFETY: all arguments of this method are stored in its columns.
            unsafe {
                self.append(|buffer, index| {
                    buffer.methods.put(index, #number);
                    #( buffer.#columns.put(index, #names); )*
                });
            }
        }
    });
    let methods: Vec<_> = functions
        .zip(&calls.methods)
        .zip(bodies)
        .map(|((function, method), body)| {
            let signature = signature(function, &method.arguments);
            quote!(#[inline(always)] #signature { #body })
        })
        .collect();
    let fronts = [quote!(Environment), quote!(Producer)];
    let implementations = fronts.iter().map(|front| {
        quote! {
            #[allow(unsafe_code)]
            impl #trait_name for #library::#front<#name> {
                #( #methods )*
            }
        }
    });
    quote!(#( #implementations )*)
}

/// The trait on what points to something that has it.
fn shared(item: &ItemTrait, calls: &Calls) -> TokenStream {
    let trait_name = &item.ident;
    let methods: Vec<_> = functions(item)
        .zip(&calls.methods)
        .map(|(function, method)| {
            let signature = signature(function, &method.arguments);
            let name = &method.name;
            let arguments = method.arguments.iter().map(|a| &a.name);
            quote!(#signature { #trait_name::#name(&**self, #( #arguments ),*); })
        })
        .collect();
    quote! {
        impl<Shared: #trait_name + ?::core::marker::Sized> #trait_name for &Shared {
            #( #methods )*
        }

        impl<Shared: #trait_name + ?::core::marker::Sized> #trait_name for ::std::sync::Arc<Shared> {
            #( #methods )*
        }
    }
}

/// Compile errors that point at the type of an argument.
fn checks(calls: &Calls) -> TokenStream {
    let each = calls
        .columns
        .iter()
        .map(|ty| quote_spanned!(ty.span()=> argument_is_send_and_owns_what_it_needs::<#ty>();));
    quote! {
        const _: () = {
            const fn argument_is_send_and_owns_what_it_needs<T: ::core::marker::Send + 'static>() {}
            #( #each )*
        };
    }
}

fn functions(item: &ItemTrait) -> impl Iterator<Item = &TraitItemFn> {
    item.items.iter().filter_map(|part| match part {
        TraitItem::Fn(function) => Some(function),
        _ => None,
    })
}

/// The signature with names of ours.
fn signature(function: &TraitItemFn, arguments: &[Argument]) -> TokenStream {
    let name = &function.sig.ident;
    let types = function.sig.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(&typed.ty),
        FnArg::Receiver(_) => None,
    });
    let names = arguments.iter().map(|a| &a.name);
    quote!(fn #name(&self, #( #names: #types ),*))
}
