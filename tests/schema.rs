//! JSON output: what commands print follows the committed schemas.

use std::path::Path;
use std::process::{Command, Stdio};

use lab::repository;
use lab::snapshots::false_sharing;
use serde_json::{json, Value};

/// Returns what armtrace prints. Its exit status does not matter: `doctor` fails where it cannot trace, after printing.
fn printed(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    let output = command.args(args).env_remove("ARMTRACE_MYSQL").stdin(Stdio::null()).output().expect("armtrace");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|why| panic!("{args:?}: {why}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns a schema in which objects have no members but those that it names.
fn strict(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(members) => {
            if members.contains_key("properties") {
                members.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            members.values_mut().for_each(|member| *member = strict(member.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = strict(item.take())),
        _ => {}
    }
    schema
}

/// Checks a document against the schema that it names.
fn check(document: &Value, name: &str) {
    assert_eq!(document["schema"], format!("{name}/1"));
    let path = repository(&format!("docs/reference/schema/{name}.json"));
    let schema: Value = serde_json::from_slice(&std::fs::read(&path).expect("a schema")).expect("JSON");
    let validator = jsonschema::validator_for(&strict(schema)).expect("a valid schema");
    let errors: Vec<String> =
        validator.iter_errors(document).take(5).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}");
}

fn fixture(name: &str) -> String {
    repository(&format!("tests/fixtures/{name}.rec")).display().to_string()
}

#[test]
fn reports_follow_their_schema() {
    for name in ["recording-v1", "recording-v1-cpu", "recording-v1-handoffs", "recording-v1-wake-ups"] {
        let file = fixture(name);
        let report = printed(&["report", &file, "--json"]);
        check(&report, "armtrace-report");
        assert_eq!(report, printed(&["report", &file, "--format", "json"]), "--json is short for --format json");
    }
}

#[test]
fn comparisons_follow_their_schema() {
    let files = [fixture("recording-v1-handoffs"), fixture("recording-v1-wake-ups"), fixture("recording-v1")];
    let [a, b, old] = files.each_ref().map(String::as_str);
    for args in [&[a, b][..], &[b, a, "--usd-a", "1", "--usd-b", "2"], &[old, a, "--ghz-a", "3", "--ghz-b", "2"]] {
        check(&printed(&[&["compare", "--json"], args].concat()), "armtrace-compare");
    }
    check(&printed(&["compare", "--json", "--by", "threads", a, b]), "armtrace-scaling");
}

#[test]
fn audits_follow_their_schema() {
    let program = env!("CARGO_BIN_EXE_armtrace");
    check(&printed(&["audit", program, "--json"]), "armtrace-audit");
    let other = std::env::current_exe().expect("this test");
    check(&printed(&["audit", program, &other.display().to_string(), "--json"]), "armtrace-audit-compare");
}

#[test]
fn findings_of_doctor_follow_their_schema() {
    check(&printed(&["doctor", "--json"]), "armtrace-doctor");
}

#[test]
fn watches_follow_their_schema() {
    let mut watch = serde_json::to_value(false_sharing()).expect("JSON");
    watch["schema"] = json!("armtrace-watch/1");
    check(&watch, "armtrace-watch");
}

/// A check that accepts everything would prove nothing.
#[test]
fn documents_that_differ_from_their_schema_are_noticed() {
    let schema = |name: &str| repository(&format!("docs/reference/schema/{name}.json"));
    let read =
        |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).expect("a schema")).expect("JSON") };
    let report = printed(&["report", &fixture("recording-v1-handoffs"), "--json"]);
    let validator = jsonschema::validator_for(&strict(read(&schema("armtrace-report")))).expect("a valid schema");
    let is_valid = |change: fn(&mut Value)| {
        let mut changed = report.clone();
        change(&mut changed);
        validator.is_valid(&changed)
    };
    assert!(is_valid(|_| {}));
    assert!(!is_valid(|report| report["schema"] = json!("armtrace-report/2")));
    assert!(!is_valid(|report| report["totals"]["waits"] = json!("many")));
    assert!(!is_valid(|report| report["latches"][0]["new"] = json!(1)));
    assert!(!is_valid(|report| _ = report.as_object_mut().unwrap().remove("host")));
}
