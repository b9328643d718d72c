//! What the trait's methods are, and what is not allowed in them.

use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Error, FnArg, Ident, ItemTrait, Pat, Path, Result, Token, TraitItem, TraitItemFn, Type};

/// The name of the library, from the attribute's arguments.
pub(crate) struct Library {
    pub(crate) path: Path,
}

impl Parse for Library {
    fn parse(input: ParseStream<'_>) -> Result<Library> {
        let path = if input.is_empty() {
            syn::parse_quote!(::corewise_defer)
        } else {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            input.call(Path::parse_mod_style)?
        };
        match input.is_empty() {
            true => Ok(Library { path }),
            false => Err(input.error("only `crate = PATH` is an argument of #[deferred]")),
        }
    }
}

/// One method.
pub(crate) struct Method {
    pub(crate) name: Ident,
    pub(crate) arguments: Vec<Argument>,
}

/// One of its arguments.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    /// Which array it is kept in.
    pub(crate) column: usize,
}

/// All methods, and the arrays for their arguments.
pub(crate) struct Calls {
    pub(crate) methods: Vec<Method>,
    /// The arrays' types, one for each.
    pub(crate) columns: Vec<Type>,
}

impl Calls {
    /// # Errors
    /// What is not allowed, where it stands.
    pub(crate) fn of(item: &ItemTrait) -> Result<Calls> {
        let mut errors = Vec::new();
        let mut refuse = |span: proc_macro2::Span, why: &str| errors.push(Error::new(span, why));
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            refuse(
                item.generics.span(),
                "a deferred trait has no generic parameters: a buffer holds calls of one kind",
            );
        }
        if !item.supertraits.is_empty() {
            refuse(
                item.supertraits.span(),
                "a deferred trait has no supertraits: environments implement it, and would have to implement them",
            );
        }
        if let Some(token) = &item.unsafety {
            refuse(token.span, "a deferred trait is not unsafe");
        }
        let mut methods = Vec::new();
        let mut columns = Vec::new();
        for part in &item.items {
            match part {
                TraitItem::Fn(function) => match method(function, &mut columns) {
                    Ok(method) => methods.push(method),
                    Err(error) => errors.push(error),
                },
                other => errors.push(Error::new(
                    other.span(),
                    "a deferred trait has methods and nothing else",
                )),
            }
        }
        if methods.is_empty() && errors.is_empty() {
            errors.push(Error::new(
                item.ident.span(),
                "a deferred trait has at least one method",
            ));
        }
        if methods.len() > 256 {
            errors.push(Error::new(
                item.ident.span(),
                "a deferred trait has at most 256 methods: one byte says which one was called",
            ));
        }
        let all = errors.into_iter().reduce(|mut all, error| {
            all.combine(error);
            all
        });
        match all {
            Some(error) => Err(error),
            None => Ok(Calls { methods, columns }),
        }
    }
}

fn method(function: &TraitItemFn, columns: &mut Vec<Type>) -> Result<Method> {
    let signature = &function.sig;
    let refuse = |span, why: &str| Err(Error::new(span, why));
    if let Some(body) = &function.default {
        return refuse(
            body.span(),
            "a deferred method has no default body: it would be executed at once",
        );
    }
    if !matches!(signature.output, syn::ReturnType::Default) {
        return refuse(
            signature.output.span(),
            "a deferred method returns nothing: it is executed when its caller has gone on (pass a `Promise` to get a result)",
        );
    }
    if !signature.generics.params.is_empty() || signature.generics.where_clause.is_some() {
        return refuse(
            signature.generics.span(),
            "a deferred method has no generic parameters: its arguments are stored",
        );
    }
    for (token, what) in [
        (signature.asyncness.map(|t| t.span), "async"),
        (signature.unsafety.map(|t| t.span), "unsafe"),
        (signature.constness.map(|t| t.span), "const"),
    ] {
        if let Some(span) = token {
            return refuse(span, &format!("a deferred method is not {what}"));
        }
    }
    if let Some(abi) = &signature.abi {
        return refuse(
            abi.span(),
            "a deferred method has Rust's own calling convention",
        );
    }
    if let Some(attribute) = function.attrs.iter().find(|a| a.path().is_ident("cfg")) {
        return refuse(
            attribute.span(),
            "a deferred method is there in every configuration: put `cfg` on the trait",
        );
    }
    let mut inputs = signature.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(receiver))
            if receiver.reference.is_some()
                && receiver.mutability.is_none()
                && receiver.colon_token.is_none() => {}
        other => {
            let span = other.map_or_else(|| signature.ident.span(), Spanned::span);
            return refuse(
                span,
                "a deferred method takes `&self`: several threads may execute buffers at once",
            );
        }
    }
    let mut arguments = Vec::<Argument>::new();
    for (index, input) in inputs.enumerate() {
        let FnArg::Typed(input) = input else { continue };
        if !matches!(&*input.pat, Pat::Ident(_) | Pat::Wild(_)) {
            return refuse(
                input.pat.span(),
                "an argument of a deferred method is a name",
            );
        }
        refuse_borrowed(&input.ty)?;
        // Not the user's names: they could be those of what is written around them.
        let name = Ident::new(&format!("argument_{index}"), input.pat.span());
        let taken = |column: usize| arguments.iter().any(|a: &Argument| a.column == column);
        let free = (0..columns.len()).find(|&c| columns[c] == *input.ty && !taken(c));
        let column = free.unwrap_or_else(|| {
            columns.push((*input.ty).clone());
            columns.len() - 1
        });
        arguments.push(Argument { name, column });
    }
    Ok(Method {
        name: signature.ident.clone(),
        arguments,
    })
}

/// References that stand open in the type. Those behind an alias are caught by the bound `'static`.
fn refuse_borrowed(ty: &Type) -> Result<()> {
    match ty {
        Type::Reference(reference) => {
            let lasts = reference
                .lifetime
                .as_ref()
                .is_some_and(|l| l.ident == "static");
            match lasts {
                true => Ok(()),
                false => Err(Error::new(
                    reference.span(),
                    "an argument of a deferred method owns what it needs: what is borrowed may be gone when the call is executed",
                )),
            }
        }
        Type::ImplTrait(other) => Err(Error::new(
            other.span(),
            "an argument of a deferred method has one type, which can be stored",
        )),
        Type::Tuple(tuple) => tuple.elems.iter().try_for_each(refuse_borrowed),
        Type::Array(array) => refuse_borrowed(&array.elem),
        Type::Paren(inner) => refuse_borrowed(&inner.elem),
        Type::Group(inner) => refuse_borrowed(&inner.elem),
        _ => Ok(()),
    }
}
