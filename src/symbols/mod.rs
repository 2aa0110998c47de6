//! Server binaries: names to addresses and back, function bounds, and bytes. Where a binary has no names, they come
//! from elsewhere.

mod debug_file;
mod debug_info;
mod debug_roots;
mod debuginfod;
mod debuglink;
mod demangle;
mod frame;
mod image;
mod loaded;
mod mapped;
mod per_image;
pub mod portable;
mod root_folder;
mod signature;
mod sources;
mod table;

pub use debug_file::{DebugFile, DebugFileError};
pub use debug_info::{DebugInfo, DebugInfoError, SectionError, Slice};
pub use debug_roots::{is_deleted, DebugRoots};
pub(crate) use debuginfod::root_certs;
pub use debuginfod::{Debuginfod, DebuginfodError, FailedRequest, RequestError};
pub use frame::{frame, stack_pointer, unwind, unwind_row, Frame, Unwind};
pub use image::{
    own_build_id, Arch, BuildIdentity, Damage, FileIdentity, Image, ImageError, Malformed, Mismatch, OtherMachine,
    SymbolSource,
};
pub use per_image::PerImage;
pub use root_folder::{open_regular, RootFolder};
pub use signature::{parameter_types, parameters, Parameter};
pub use sources::{complete, read_any, NamedFileError, NoSymbols, Settings, Trial, UnusableFile};
pub use table::{plain_name, Symbol, Table, TableError};
