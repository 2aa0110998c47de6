//! The programs' structures as text: their bytes in base64.

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use plain::Plain;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bpf::bytes_of;

pub fn serialize<T: Plain, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    STANDARD.encode(bytes_of(value)).serialize(serializer)
}

pub fn deserialize<'de, T: Plain + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    unpack(&String::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("not the bytes of such a structure"))
}

fn unpack<T: Plain + Default>(text: &str) -> Option<T> {
    let bytes = STANDARD.decode(text).ok().filter(|bytes| bytes.len() == size_of::<T>())?;
    let mut value = T::default();
    plain::copy_from_bytes(&mut value, &bytes).ok().map(|()| value)
}

/// Lists of such structures.
pub mod each {
    use super::*;

    pub fn serialize<'a, T: Plain + 'a, L, S: Serializer>(list: &'a L, serializer: S) -> Result<S::Ok, S::Error>
    where
        &'a L: IntoIterator<Item = &'a T>,
    {
        serializer.collect_seq(list.into_iter().map(|value| STANDARD.encode(bytes_of(value))))
    }

    pub fn deserialize<'de, T, L: TryFrom<Vec<T>>, D>(deserializer: D) -> Result<L, D::Error>
    where
        T: Plain + Default,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let list: Option<Vec<T>> = texts.iter().map(|text| unpack(text)).collect();
        let wrong = || D::Error::custom("not a list of such structures");
        list.and_then(|list| list.try_into().ok()).ok_or_else(wrong)
    }
}

/// Such a structure, if there is one.
pub mod optional {
    use super::*;

    pub fn serialize<T: Plain, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|value| STANDARD.encode(bytes_of(value))).serialize(serializer)
    }

    pub fn deserialize<'de, T: Plain + Default, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let unpacked = text.map(|text| unpack(&text).ok_or_else(|| D::Error::custom("not such a structure")));
        unpacked.transpose()
    }
}
