//! Whether the documentation is whole: its links, its table of contents, the pages that the code names.

mod links;
