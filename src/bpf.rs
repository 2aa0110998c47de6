//! The skeletons that the build generates from the programs in `bpf/`.

#[allow(clippy::all, missing_docs)]
pub mod latch {
    include!(concat!(env!("OUT_DIR"), "/latch.skel.rs"));
}

#[allow(clippy::all, missing_docs)]
pub mod calibrate {
    include!(concat!(env!("OUT_DIR"), "/calibrate.skel.rs"));
}

#[allow(clippy::all, missing_docs)]
pub mod sample {
    include!(concat!(env!("OUT_DIR"), "/sample.skel.rs"));
}

#[allow(clippy::all, missing_docs)]
pub mod checksum {
    include!(concat!(env!("OUT_DIR"), "/checksum.skel.rs"));
}

#[allow(clippy::all, missing_docs)]
pub mod event {
    include!(concat!(env!("OUT_DIR"), "/event.skel.rs"));
}
