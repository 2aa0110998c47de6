//! Relative links lead to files and headings that exist, and the book has all of its pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{files_below, pages, read, root, BOOK};

const CONTENTS: &str = "docs/SUMMARY.md";
const README: &str = "README.md";
const README_MAX_LINES: usize = 120;

/// Text that becomes part of a page in another folder, from which its links are resolved.
const PARTS: [(&str, &str); 1] = [("tests/lab/src/bench/introduction.md", "docs/explanation")];

/// Files in which a page may be named: sources, scripts, and what is built from them.
const SOURCES: [&str; 10] =
    ["src", "bpf", "tests", "benches", "fuzz", "scripts", "packaging", "dashboards", "Makefile", "build.rs"];

/// What one page links to, and what can be linked to in it.
#[derive(Debug, Default, PartialEq)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Returns the anchor that a heading gets: its letters, digits, `-` and `_`, in lower case, with `-` for spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// Returns the values of `src`, `srcset` and `href` in HTML.
fn links_of_html(html: &str) -> Vec<String> {
    let attributes = ["src=\"", "srcset=\"", "href=\""];
    let values = attributes.iter().flat_map(|attribute| html.split(attribute).skip(1));
    values.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}

fn parse(text: &str) -> Page {
    let mut page = Page::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into_string());
            }
            Event::Html(html) | Event::InlineHtml(html) => page.links.extend(links_of_html(&html)),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let name = anchor(&heading.take().unwrap_or_default());
                let earlier = seen.entry(name.clone()).or_default();
                page.anchors.insert(if *earlier == 0 { name } else { format!("{name}-{earlier}") });
                *earlier += 1;
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    page
}

/// Returns a path without `.` and `..`.
fn resolved(folder: &Path, link: &str) -> PathBuf {
    folder.join(link).components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
        path
    })
}

fn is_external(link: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

/// Returns what is wrong with a page's links; they are resolved from `folder`.
fn wrong_links(page: &str, folder: &Path, pages: &BTreeMap<String, Page>) -> Vec<String> {
    let links = pages[page].links.iter().filter(|link| !is_external(link));
    let wrong = links.filter_map(|link| {
        let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() { PathBuf::from(page) } else { resolved(folder, path) };
        let name = target.to_string_lossy();
        let problem = if !root().join(&target).exists() {
            "no such file"
        } else if folder.starts_with(BOOK) && !target.starts_with(BOOK) {
            "a link out of the book leads nowhere once the book is built: write the file's name"
        } else if !fragment.is_empty() && !pages.get(&*name).is_some_and(|page| page.anchors.contains(fragment)) {
            "no such heading"
        } else {
            return None;
        };
        Some(format!("{page}: {link}: {problem}"))
    });
    wrong.collect()
}

#[test]
fn links_lead_somewhere() {
    let pages: BTreeMap<String, Page> = pages().into_iter().map(|page| (page.clone(), parse(&read(&page)))).collect();
    let folder = |page: &String| {
        let part = PARTS.iter().find(|(part, _)| part == page);
        part.map_or_else(|| Path::new(page).parent().unwrap().to_owned(), |(_, folder)| PathBuf::from(folder))
    };
    let wrong: Vec<String> = pages.keys().flat_map(|page| wrong_links(page, &folder(page), &pages)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_contents_list_every_page_once() {
    let links = parse(&read(CONTENTS)).links;
    let listed: BTreeSet<String> = links.iter().map(|link| format!("{BOOK}/{link}")).collect();
    assert_eq!(listed.len(), links.len(), "a page is listed twice");
    let written = files_below(BOOK).into_iter().filter(|file| file.ends_with(".md") && file != CONTENTS).collect();
    assert_eq!(listed, written);
}

#[test]
fn the_readme_is_short() {
    let lines = read(README).lines().count();
    assert!(lines <= README_MAX_LINES, "{lines} lines: what is longer belongs to the book");
}

/// Returns the files of the book that a text names by their path, as in `docs/reference/metrics.md`.
fn named_pages(text: &str) -> Vec<String> {
    let rests = text.split("docs/").skip(1);
    let end = |rest: &str| rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-_/.".contains(c)).unwrap_or(rest.len());
    let names = rests.map(|rest| rest[..end(rest)].trim_end_matches('.'));
    let is_file = |name: &&str| [".md", ".tsv", ".svg"].iter().any(|extension| name.ends_with(extension));
    names.filter(is_file).map(|name| format!("{BOOK}/{name}")).collect()
}

#[test]
fn pages_that_the_code_names_exist() {
    let files = SOURCES.iter().flat_map(|source| files_below(source)).filter(|file| !file.starts_with("tests/docs/"));
    let gone = files.flat_map(|file| {
        let text = fs::read(root().join(&file)).expect("a file");
        let names = named_pages(&String::from_utf8_lossy(&text));
        let gone = names.into_iter().filter(|name| !root().join(name).exists());
        gone.map(|name| format!("{file}: {name}")).collect::<Vec<_>>()
    });
    let gone: Vec<String> = gone.collect();
    assert!(gone.is_empty(), "{}", gone.join("\n"));
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# A `b_c` (d), e-f!\n\n## Same\n\n## Same\n\n[x](y.md#z) ![p](q.svg)\n\n```\n[no](no.md)\n```\n\
                <picture><source srcset=\"dark.svg\"><img src=\"light.svg\"></picture>\n";
    let page = parse(text);
    assert_eq!(page.links, ["y.md#z", "q.svg", "dark.svg", "light.svg"]);
    let anchors = ["a-b_c-d-e-f", "same", "same-1"].map(str::to_owned);
    assert_eq!(page.anchors, BTreeSet::from(anchors));
    assert_eq!(resolved(Path::new("docs/how-to"), "../reference/./a.md"), Path::new("docs/reference/a.md"));
    assert_eq!(named_pages("see docs/a/b.md. Or `docs/c.tsv`, in docs/"), ["docs/a/b.md", "docs/c.tsv"]);
}

#[test]
fn wrong_links_are_found() {
    let page = |links: &[&str]| Page { links: links.iter().map(|&link| link.to_owned()).collect(), ..Page::default() };
    let links = ["metrics.md#no-such", "nowhere.md", "../../README.md", "metrics.md", "https://example.org/"];
    let pages = BTreeMap::from([("docs/reference/x.md".to_owned(), page(&links))]);
    let wrong = wrong_links("docs/reference/x.md", Path::new("docs/reference"), &pages);
    assert_eq!(wrong.len(), 3, "{wrong:?}");
}
