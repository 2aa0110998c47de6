//! The skeletons that the build generates from the programs in `bpf/`.

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod latch {
    include!(concat!(env!("OUT_DIR"), "/latch.skel.rs"));
}

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod calibrate {
    include!(concat!(env!("OUT_DIR"), "/calibrate.skel.rs"));
}

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod sample {
    include!(concat!(env!("OUT_DIR"), "/sample.skel.rs"));
}

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod checksum {
    include!(concat!(env!("OUT_DIR"), "/checksum.skel.rs"));
}

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod event {
    include!(concat!(env!("OUT_DIR"), "/event.skel.rs"));
}

/// Declares which of the programs' structures are read from and written to maps as bytes.
macro_rules! plain_types {
    ($($module:ident: $($name:ident),+;)+) => {
        $($(
            // SAFETY: a C structure without pointers, without padding, and without a value that is invalid: any bytes
            // of its length are a valid value, and all of its bytes are initialized.
            unsafe impl plain::Plain for $module::types::$name {}
        )+)+
    };
}

plain_types! {
    latch: attachment, callsite_key, callsite_waits, handoff_key, handoffs, hits, latch_key, latch_kinds, library_frame,
        page_key, page_waits, site, wait, waits;
    sample: hits, latch_key, sample_key;
    checksum: checksum_calls;
    event: event_key, hits;
}

/// Returns a structure's bytes, as a map contains them.
pub fn bytes_of<T: plain::Plain>(value: &T) -> &[u8] {
    // SAFETY: every type that implements the trait is declared above, and has no padding.
    unsafe { plain::as_bytes(value) }
}
