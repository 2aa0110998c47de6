//! The skeletons that the build generates from the programs in `bpf/`.

include!(concat!(env!("OUT_DIR"), "/skeletons.rs"));

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
    latch: attachment, callsite_key, callsite_waits, executed, handoff_key, handoffs, hits, latch_key, latch_kind,
        latch_kinds, library_frame, own_callsite_key, own_handoff_key, own_latch_key, own_page_key, page_key, page_waits,
        seen_name, seen_thread, site, wait, wait_sampler, wait_sampling, waiting_statement, waits;
    sample: executed, hits, latch_key, sample_key, sampled_statement;
    checksum: checksum_calls;
    event: event_key, hits;
    fsync: fsync_file, fsyncs;
    lock: lock_key, lock_wait, lock_waits;
}

/// Returns a structure's bytes, as a map contains them.
pub fn bytes_of<T: plain::Plain>(value: &T) -> &[u8] {
    // SAFETY: every type that implements the trait is declared above, and has no padding.
    unsafe { plain::as_bytes(value) }
}
