//! `state`: what a script keeps from event to event.
//!
//! It is an object whose fields are read and written one by one, and each write is checked: so it is
//! never larger than the limits, and holds plain data only. A kept program would be what it was once,
//! and would keep the whole status of that time.

use super::data::Size;
use super::desk::{Failed, SharedDesk};
use rhai::{Dynamic, Engine, FuncRegistration};

/// What a script has in its hands; the data are at the desk.
#[derive(Clone)]
pub(super) struct StateView(pub(super) SharedDesk);

pub(super) fn register(engine: &mut Engine) {
    engine.register_type_with_name::<StateView>("State");
    engine.register_indexer_get(|state: &mut StateView, name: &str| {
        let desk = state.0.lock();
        desk.state.get(name).cloned().unwrap_or(Dynamic::UNIT)
    });
    // "Pure" as far as the language is concerned: `state` itself is a constant.
    FuncRegistration::new_index_setter()
        .with_purity(true)
        .register_into_engine(
            engine,
            |state: &mut StateView, name: &str, value: Dynamic| set(&state.0, name, value),
        );
}

fn set(desk: &SharedDesk, name: &str, value: Dynamic) -> Result<(), Failed> {
    let mut desk = desk.lock();
    desk.status()?;
    let mut size = Size::default();
    let mut add = |name: &str, value: &Dynamic| {
        size.add_entry(name)?;
        size.add(value, 1)
    };
    let mut fits = add(name, &value);
    for (other, kept) in desk.state.iter().filter(|(other, _)| *other != name) {
        fits = fits.and_then(|()| add(other, kept));
    }
    desk.operations.take(size.operations());
    if let Err(exceeded) = fits {
        return Err(desk.exceeded(exceeded));
    }
    let told = |what: String| Failed::from(format!("cannot keep state.{name}: {what}"));
    super::data::plain(&value).map_err(told)?;
    if value.is_unit() {
        desk.state.remove(name);
    } else {
        desk.state.insert(name.into(), value);
    }
    Ok(())
}
