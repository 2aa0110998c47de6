//! What the keys in the programs' maps mean.

use crate::bpf::bytes_of;
use crate::bpf::latch::types;
use crate::model::{Kind, Mode};
use crate::names::{Identity, PageKey};

/// Stands for a wait function in the keys of waits in the C library.
pub(super) const PTHREAD: u8 = types::limit::LIBRARY_FUNCTION.0 as u8;

/// A key of the programs' maps in comparable form.
pub type MapKey = [u8; size_of::<types::latch_key>()];

pub(super) fn key_of(key: &types::latch_key) -> MapKey {
    bytes_of(key).try_into().expect("a key is as long as itself")
}

/// The inverse of [`key_of`].
pub(super) fn latch_key(key: &MapKey) -> types::latch_key {
    let mut latch = types::latch_key::default();
    // A key is as long as itself.
    _ = plain::copy_from_bytes(&mut latch, key);
    latch
}

/// Returns how a latch is identified.
pub(super) fn identity(key: &types::latch_key) -> Identity {
    match types::identity(u32::from(key.identity)) {
        types::identity::IDENTITY_LATCH_ID => Identity::LatchId(key.id as u32),
        types::identity::IDENTITY_CREATED => Identity::Created { file: key.id, line: key.line },
        types::identity::IDENTITY_PSI_CLASS => Identity::PsiClass(key.id),
        types::identity::IDENTITY_STATIC => Identity::Static(key.id),
        types::identity::IDENTITY_METADATA_LOCK => Identity::MetadataLock,
        types::identity::IDENTITY_PAGE => Identity::Page,
        types::identity::IDENTITY_ALLOCATOR => Identity::Allocator,
        _ => Identity::Caller(key.id),
    }
}

/// Returns the page that a key stands for.
pub(super) fn page_key(key: &types::page_key) -> PageKey {
    // Only pages of indexes have an index number.
    if key.index != 0 {
        PageKey::Index { space: key.space, index: key.index, level: key.level }
    } else {
        PageKey::Plain { space: key.space, kind: key.r#type }
    }
}

/// Returns the kind of object that a thread waits for, as the C library's function implies it.
pub(super) fn pthread_kind(primitive: u8) -> Option<Kind> {
    match types::primitive(u32::from(primitive)) {
        types::primitive::PRIMITIVE_MUTEX
        | types::primitive::PRIMITIVE_REACQUIRE
        | types::primitive::PRIMITIVE_ALLOCATOR => Some(Kind::Mutex),
        types::primitive::PRIMITIVE_RWLOCK_READ | types::primitive::PRIMITIVE_RWLOCK_WRITE => Some(Kind::Rwlock),
        types::primitive::PRIMITIVE_COND => Some(Kind::Cond),
        _ => None,
    }
}

/// Returns whether a condition variable woke the waiting thread.
pub(super) fn is_reacquire(primitive: u8) -> bool {
    types::primitive(u32::from(primitive)) == types::primitive::PRIMITIVE_REACQUIRE
}

/// Returns the mode of a key; the inverse of [`mode_code`](super::plan::mode_code).
pub(super) fn mode(code: u8) -> Mode {
    match types::mode(u32::from(code)) {
        types::mode::MODE_S => Mode::S,
        types::mode::MODE_SX => Mode::Sx,
        types::mode::MODE_X => Mode::X,
        _ => Mode::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_condition_woke_gets_its_mutex_back() {
        let primitives = 0..=types::primitive::PRIMITIVE_REACQUIRE.0 as u8;
        let woken: Vec<u8> = primitives.filter(|primitive| is_reacquire(*primitive)).collect();
        assert_eq!(woken, [types::primitive::PRIMITIVE_REACQUIRE.0 as u8]);
        assert_eq!(pthread_kind(woken[0]), Some(Kind::Mutex), "its name is the mutex's");
    }
}
