//! What a script keeps from event to event, as it is written into a journal.

use crate::policy::memory::seed;
use rhai::{Dynamic, Map};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that a script policy knows beyond the status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    state: BTreeMap<String, Value>,
    /// Where `permute` is in its sequence.
    #[serde(with = "seed")]
    pub(super) random: fastrand::Rng,
    pub(super) period_ns: Option<u64>,
    /// The last failure, and how often it came one after the other.
    pub(super) repeated: (String, u64),
}

/// What `state` may hold (see `data::plain`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Value {
    Unit,
    Bool(bool),
    Int(i64),
    /// Its bits: JSON has neither infinities nor what is no number.
    Float(u64),
    Char(char),
    Text(String),
    Array(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

impl Kept {
    pub(super) fn new(
        state: &Map,
        random: fastrand::Rng,
        period_ns: Option<u64>,
        repeated: (String, u64),
    ) -> Kept {
        Kept {
            state: values(state),
            random,
            period_ns,
            repeated,
        }
    }

    /// `state` again.
    pub(super) fn state(&self) -> Map {
        map(&self.state)
    }
}

fn values(map: &Map) -> BTreeMap<String, Value> {
    let values = map.iter();
    values
        .map(|(name, value)| (name.to_string(), Value::of(value)))
        .collect()
}

fn map(values: &BTreeMap<String, Value>) -> Map {
    let values = values.iter();
    values
        .map(|(name, value)| (name.into(), value.dynamic()))
        .collect()
}

impl Value {
    fn of(value: &Dynamic) -> Value {
        if let Ok(array) = value.as_array_ref() {
            Value::Array(array.iter().map(Value::of).collect())
        } else if let Ok(map) = value.as_map_ref() {
            Value::Map(values(&map))
        } else if let Ok(text) = value.as_immutable_string_ref() {
            Value::Text(text.to_string())
        } else if let Ok(int) = value.as_int() {
            Value::Int(int)
        } else if let Ok(float) = value.as_float() {
            Value::Float(float.to_bits())
        } else if let Ok(truth) = value.as_bool() {
            Value::Bool(truth)
        } else if let Ok(letter) = value.as_char() {
            Value::Char(letter)
        } else {
            // Nothing else can be kept.
            Value::Unit
        }
    }

    fn dynamic(&self) -> Dynamic {
        match self {
            Value::Unit => Dynamic::UNIT,
            Value::Bool(truth) => (*truth).into(),
            Value::Int(int) => (*int).into(),
            Value::Float(bits) => f64::from_bits(*bits).into(),
            Value::Char(letter) => (*letter).into(),
            Value::Text(text) => text.as_str().into(),
            Value::Array(values) => {
                Dynamic::from_array(values.iter().map(Value::dynamic).collect())
            }
            Value::Map(values) => Dynamic::from_map(map(values)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_script_may_keep_comes_back_as_it_was() {
        let array: rhai::Array = vec![Dynamic::UNIT, true.into(), 'ü'.into(), f64::INFINITY.into()];
        let mut inner = Map::new();
        inner.insert("list".into(), Dynamic::from_array(array));
        inner.insert("third".into(), (1.0_f64 / 3.0).into());
        let mut state = Map::new();
        state.insert("inner".into(), Dynamic::from_map(inner));
        state.insert("least".into(), i64::MIN.into());
        state.insert("name".into(), "a \"text\"".into());
        let mut random = fastrand::Rng::with_seed(7);
        random.u64(..);
        let kept = Kept::new(&state, random, Some(5), ("why".to_owned(), 3));
        let text = serde_json::to_string(&kept).unwrap();
        let mut again: Kept = serde_json::from_str(&text).unwrap();
        assert_eq!(again, kept);
        assert_eq!(again.random.u64(..), kept.random.clone().u64(..));
        assert_eq!(format!("{:?}", again.state()), format!("{state:?}"));
    }
}
