//! What commands print as JSON: each document names the schema that it follows.
//!
//! The schemas are in `docs/reference/schema/`, made from the types that are printed. A test compares the two, and
//! `make schemas` writes them anew.

use serde::Serialize;

use crate::audit;
use crate::measure::watchpoint::LineWatch;
use crate::recording::compare::{Comparison, Scaling};
use crate::recording::Report;

/// Something that a command prints as JSON.
///
/// The number at the end of its schema's name rises when a member is removed, or changes its meaning or type. A member
/// may be added at any time.
pub(super) trait Document: Serialize {
    /// The name and number of its schema.
    const SCHEMA: &'static str;
}

impl Document for Report {
    const SCHEMA: &'static str = "armtrace-report/1";
}

impl Document for Comparison {
    const SCHEMA: &'static str = "armtrace-compare/1";
}

impl Document for Scaling {
    const SCHEMA: &'static str = "armtrace-scaling/1";
}

impl Document for audit::Report {
    const SCHEMA: &'static str = "armtrace-audit/1";
}

impl Document for audit::Comparison {
    const SCHEMA: &'static str = "armtrace-audit-compare/1";
}

impl Document for LineWatch {
    const SCHEMA: &'static str = "armtrace-watch/1";
}

/// A document with the name of its schema.
#[derive(Serialize)]
pub(super) struct Named<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    document: &'a T,
}

impl<'a, T: Document> Named<'a, T> {
    pub fn new(document: &'a T) -> Named<'a, T> {
        Named { schema: T::SCHEMA, document }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::path::PathBuf;

    use schemars::generate::SchemaSettings;
    use schemars::JsonSchema;
    use serde_json::{json, Value};

    use super::*;
    use crate::commands::doctor::Findings;

    /// Set by `make schemas`, to write the schemas instead of comparing them.
    const WRITE: &str = "ARMTRACE_WRITE_SCHEMAS";

    /// Returns the schema of a document as it is in its file.
    fn schema<T: Document + JsonSchema>() -> String {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
        schema["title"] = Value::from(T::SCHEMA);
        schema["properties"]["schema"] =
            json!({"const": T::SCHEMA, "description": "The name and number of this schema."});
        schema["required"].as_array_mut().expect("required members").insert(0, "schema".into());
        serde_json::to_string_pretty(&schema).expect("JSON") + "\n"
    }

    /// Compares a document's schema with its file.
    fn check<T: Document + JsonSchema>() {
        let name = T::SCHEMA.split('/').next().expect("a name");
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/reference/schema");
        let (path, schema) = (folder.join(format!("{name}.json")), schema::<T>());
        if env::var_os(WRITE).is_some() {
            fs::write(&path, &schema).expect("a file that can be written");
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == schema, "{} is not what {name} prints: run `make schemas`", path.display());
    }

    #[test]
    fn the_committed_schemas_are_those_of_the_documents() {
        check::<Report>();
        check::<Comparison>();
        check::<Scaling>();
        check::<audit::Report>();
        check::<audit::Comparison>();
        check::<LineWatch>();
        check::<Findings>();
    }
}
