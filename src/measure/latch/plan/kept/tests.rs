use std::path::Path;

use super::*;
use crate::discovery;

const ALLOWED: Allowed = Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true };

/// A small program that is recognised as a server.
fn server(name: &str) -> (Image, &'static Family) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/program").join(name);
    let image = Image::open_running(&program).expect("a program");
    let family = discovery::family(&image).expect("a server");
    (image, family)
}

fn json(plan: &Plan) -> String {
    serde_json::to_string(plan).expect("JSON")
}

fn copy(plan: &Plan) -> Plan {
    serde_json::from_str(&json(plan)).expect("a plan")
}

#[test]
fn a_kept_plan_is_the_same() {
    for name in ["mysql.x86_64", "mysql.aarch64", "mariadb.x86_64", "mariadb.aarch64"] {
        let (image, family) = server(name);
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::below(folder.path());
        let new = kept_plan(&cache, &image, family, ALLOWED);
        let again = || -> Kept { panic!("{name} is analysed again") };
        let kept = cache.get(&image, (SITES, ALLOWED), |kept: &Kept| kept.fits(&image, family), again).plan;
        assert!(!kept.sites.is_empty());
        assert_eq!(json(&kept), json(&new), "{name}");
        assert_eq!(json(&kept), json(&plan(&image, family, ALLOWED)), "{name}");
    }
}

/// Whoever can write the file can choose the checksum.
#[test]
fn what_refers_to_nothing_is_of_no_use() {
    let (image, family) = server("mysql.x86_64");
    let kept = Kept::new(plan(&image, family, ALLOWED), &image);
    assert!(kept.fits(&image, family));
    // A program with the same key, as nobody can make one, has other code.
    let (other, other_family) = server("mariadb.x86_64");
    assert!(!kept.fits(&other, other_family));
    let refused = |what: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = copy(&kept.plan);
        change(&mut plan);
        assert!(!Kept::new(plan, &image).fits(&image, family), "{what}");
    };
    assert!(!Kept { code: kept.code ^ 1, plan: copy(&kept.plan) }.fits(&image, family), "other code");
    refused("a site outside of the file", &|plan| plan.sites[0].file_offset = u64::MAX);
    refused("a site elsewhere", &|plan| plan.sites[0].addr += 1);
    refused("a function that is not in the catalog", &|plan| plan.sites[0].site.function = u8::MAX);
    refused("a role that there is not", &|plan| plan.sites[0].site.role = u8::MAX);
    refused("a probe that there is not", &|plan| plan.sites[0].site.probe = u16::MAX);
    refused("a site that there is not, in a group", &|plan| plan.groups[0].push(usize::MAX));
    refused("a site in no group", &|plan| _ = plan.groups[0].pop());
    refused("a site twice in a probe", &|plan| plan.probes[0].sites.push(0));
    refused("a wait function that there is not", &|plan| plan.functions[0].index = u8::MAX);
    refused("a function without code", &|plan| plan.functions[0].range.end = u64::MAX);
    refused("a function that is inlined and not there", &|plan| plan.inlined.push(u8::MAX));
    refused("more kinds than fit", &|plan| plan.kinds[0].count = u32::MAX);
    refused("a caller elsewhere", &|plan| plan.wrapper_returns.push(u64::MAX));
    refused("other static data", &|plan| plan.static_data = Some(0..u64::MAX));
}
