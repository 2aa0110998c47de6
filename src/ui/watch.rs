//! Formats the result of watching a latch's cache line for a terminal: a short table and a one-sentence verdict.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::measure::watchpoint::{LineWatch, Sharing, TouchingFunction, WatchedWord};
use crate::present::format;

/// The most functions shown for a word.
const FUNCTIONS: usize = 4;
/// The most CPUs shown for a word.
const CPUS: usize = 4;
/// The width of an object's name at most, and at least on a narrow screen. A function's name is narrower by its indent.
const NAME: usize = 46;
const LEAST_NAME: usize = 16;
const INDENT: usize = 2;
/// The width that a screen needs besides the name, for the other columns and the two CPUs that touch a word most.
const BESIDE_NAME: usize = 50;

/// Returns the whole report, ending with a newline.
pub fn text(watch: &LineWatch) -> String {
    let words: Vec<_> = watch.words.iter().map(|word| (word, FUNCTIONS)).collect();
    format!("{}{}\n\n{}\n", head(watch), table(watch, &words, usize::MAX).join("\n"), sentence(watch, &named(watch)))
}

/// Returns what fits on a screen of this size: the verdict, then the words touched most and the functions that touch
/// them.
pub fn lines(watch: &LineWatch, width: usize, height: usize) -> Vec<String> {
    let mut lines = format::wrap(&sentence(watch, "the words marked *"), width);
    lines.push(short_head(watch));
    lines.extend(which(watch).map(|which| format!("watched: {which}")));
    let room = height.saturating_sub(lines.len() + 1);
    lines.extend(table(watch, &busiest(watch, room), width));
    lines.truncate(height);
    lines.into_iter().map(|line| line.chars().take(width).collect()).collect()
}

/// Returns the words touched most and the number of functions to show for each, `room` lines in all.
fn busiest(watch: &LineWatch, room: usize) -> Vec<(&WatchedWord, usize)> {
    let mut words: Vec<&WatchedWord> = watch.words.iter().filter(|word| word.touches > 0).collect();
    words.sort_by_key(|word| Reverse(word.touches));
    words.truncate(room);
    words.sort_by_key(|word| word.offset);
    let functions = |word: &&WatchedWord| {
        let offset = word.offset;
        word.functions.iter().take(FUNCTIONS).map(|f| (f.touches, offset)).collect::<Vec<_>>()
    };
    let mut functions: Vec<(u64, i64)> = words.iter().flat_map(functions).collect();
    functions.sort_by_key(|(touches, _)| Reverse(*touches));
    functions.truncate(room - words.len());
    let of = |word: &WatchedWord| functions.iter().filter(|(_, offset)| *offset == word.offset).count();
    words.into_iter().map(|word| (word, of(word))).collect()
}

/// Returns the table for a screen of this width: a line for each word, followed by the given number of the functions
/// that touch it.
fn table(watch: &LineWatch, words: &[(&WatchedWord, usize)], width: usize) -> Vec<String> {
    let name = width.saturating_sub(BESIDE_NAME).clamp(LEAST_NAME, NAME);
    let mut lines =
        vec![format!("{:>7}  {:name$} {:>8} {:>7} {:>7}  CPUs", "offset", "what", "touches", "per ms", "writes")];
    let mut untouched: Vec<&WatchedWord> = Vec::new();
    for &(word, functions) in words {
        if word.touches == 0 {
            untouched.push(word);
            continue;
        }
        lines.extend(flush(&mut untouched));
        lines.push(row(word, watch.blames(word), name));
        lines.extend(word.functions.iter().take(functions).map(|function| function_row(function, word, name, width)));
    }
    lines.extend(flush(&mut untouched));
    lines
}

fn head(watch: &LineWatch) -> String {
    let which = which(watch).map_or(String::new(), |which| format!(", {which}"));
    let others = if watch.hits_of_others > 0 {
        format!(" ({} by other processes)", format::count(watch.hits_of_others as f64))
    } else {
        String::new()
    };
    let cost = watch.ns_per_hit.map_or(String::new(), |ns| format!(", {} each", format::nanoseconds(ns)));
    format!(
        "{} at {}{which}\ncache line of {} bytes · {} bursts in {:.1}s on {} CPUs, each at most {}ms and {} accesses per word and \
         CPU · {} accesses seen{others}{cost}\n\n",
        watch.latch,
        watch.address,
        watch.line_bytes,
        watch.bursts,
        watch.seconds,
        watch.cpus,
        watch.burst_ms,
        watch.hits_per_burst,
        format::count(watch.hits as f64),
    )
}

/// Returns which instance was watched, if there are several: `the instance of 3 with the most waiters (75.0%)`.
fn which(watch: &LineWatch) -> Option<String> {
    let share = format::percent(watch.waiters_share);
    (watch.instances > 1).then(|| format!("the instance of {} with the most waiters ({share})", watch.instances))
}

/// Returns the head in one line, for a screen.
fn short_head(watch: &LineWatch) -> String {
    let cost = watch.ns_per_hit.map_or(String::new(), |ns| format!(", {} each", format::nanoseconds(ns)));
    format!(
        "{} bytes around {} · {} bursts in {:.1}s · {} accesses{cost}",
        watch.line_bytes,
        watch.address,
        watch.bursts,
        watch.seconds,
        format::count(watch.hits as f64),
    )
}

/// Returns one line for a run of words that nothing touched, and clears the run.
fn flush(untouched: &mut Vec<&WatchedWord>) -> Option<String> {
    let range = match untouched[..] {
        [] => return None,
        [word] => offset(word),
        [first, .., last] => format!("{}…{}", offset(first), offset(last)),
    };
    untouched.clear();
    Some(format!("{range:>7}  not touched"))
}

fn offset(word: &WatchedWord) -> String {
    format!("{:+}", word.offset)
}

fn row(word: &WatchedWord, is_blamed: bool, name: usize) -> String {
    let mark = if is_blamed { '*' } else { ' ' };
    format!(
        "{:>7}{mark} {:name$} {:>8} {:>7} {:>7}  {}",
        offset(word),
        cut(&what(word), name),
        format::count(word.touches as f64),
        format::count(per_ms(word)),
        format::percent(ratio(word.writes, word.touches)),
        cpus(&word.by_cpu, word.touches),
    )
}

/// Returns a function's row, with its instruction if that fits.
fn function_row(function: &TouchingFunction, word: &WatchedWord, name: usize, width: usize) -> String {
    let share = format::percent(ratio(function.touches, word.touches));
    let writes = format::percent(ratio(function.writes, function.touches));
    let name = name - INDENT;
    let row = format!("{:11}{:name$} {share:>8} {:>7} {writes:>7}", "", cut(&function.function, name), "");
    let instruction = function.instruction.as_ref().map(|instruction| format!("{row}  {instruction}"));
    instruction.filter(|row| row.chars().count() <= width).unwrap_or(row)
}

/// Returns what a word is: the latch, or a neighbour with its name if that is known.
fn what(word: &WatchedWord) -> String {
    match (&word.object, word.is_latch) {
        (_, true) => "the latch".to_owned(),
        (Some(object), false) => format!("neighbour: {object}"),
        (None, false) => "neighbour".to_owned(),
    }
}

fn cut(name: &str, width: usize) -> String {
    crate::present::names::cut_middle(name, width)
}

fn per_ms(word: &WatchedWord) -> f64 {
    if word.watched_ns == 0 {
        return 0.0;
    }
    word.touches as f64 * 1e6 / word.watched_ns as f64
}

/// Formats the CPUs that touched a word most, `0 52%, 1 48%`, and the number of further ones.
fn cpus(by_cpu: &BTreeMap<u32, u64>, touches: u64) -> String {
    let mut cpus: Vec<(&u32, &u64)> = by_cpu.iter().collect();
    cpus.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let shown: Vec<String> =
        cpus.iter().take(CPUS).map(|(cpu, n)| format!("{cpu} {:.0}%", 100.0 * ratio(**n, touches))).collect();
    let more = if cpus.len() > CPUS { format!(" and {} more", cpus.len() - CPUS) } else { String::new() };
    shown.join(", ") + &more
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Names the neighbours to blame, the functions that touch them, and how often that moves the line.
fn named(watch: &LineWatch) -> String {
    let share = |word: &WatchedWord| {
        let part = if watch.verdict == Sharing::FalseSharing { word.moves.foreign } else { word.moves.user };
        format::percent(ratio(part, word.moves.moved))
    };
    let name = |word: &WatchedWord| {
        format!("{} ({}), {} of the line's moves while it was watched", described(word), toucher(word), share(word))
    };
    watch.words.iter().filter(|word| watch.blames(word)).map(name).collect::<Vec<_>>().join("; ")
}

/// Returns the verdict with its evidence. `blamed` names the neighbours to blame, if any.
fn sentence(watch: &LineWatch, blamed: &str) -> String {
    let all = &watch.moves;
    let moved = format!(
        "{} of {} accesses ({}) came from another CPU than the one before and moved the line",
        all.moved,
        all.followed,
        format::percent(ratio(all.moved, all.followed))
    );
    let far = if all.between_domains > 0 {
        format!(
            ", {} of them between NUMA nodes or last caches",
            format::percent(ratio(all.between_domains, all.moved))
        )
    } else {
        String::new()
    };
    match watch.verdict {
        Sharing::FalseSharing => format!(
            "FALSE SHARING: threads that do not hold the latch take its cache line away by touching {blamed}. {moved}{far}."
        ),
        Sharing::Shared => format!(
            "NO FALSE SHARING, but the latch is not alone on its line: threads that use it also use {blamed}, and fetch the line \
             again when others have touched the latch meanwhile. {moved}{far}."
        ),
        Sharing::LatchOnly => format!("NO FALSE SHARING: the latch itself is what threads share. {moved}{far}."),
        Sharing::Still => format!("NO FALSE SHARING: the line hardly moves between CPUs. {moved}."),
        Sharing::Quiet => format!(
            "TOO LITTLE was seen for a verdict: {} accesses followed another. Watch again while the latch is contended.",
            all.followed
        ),
    }
}

fn described(word: &WatchedWord) -> String {
    match &word.object {
        Some(object) => format!("{object} at {}", offset(word)),
        None => format!("the word at {}", offset(word)),
    }
}

/// Returns the function that touches a word most: `written by f`, or `read by f` if nothing writes it.
fn toucher(word: &WatchedWord) -> String {
    let writes = word.functions.iter().max_by_key(|function| function.writes).filter(|function| function.writes > 0);
    let by = |function: &TouchingFunction| cut(&function.function, 60);
    match (writes, word.functions.first()) {
        (Some(function), _) => format!("written by {}", by(function)),
        (None, Some(function)) => format!("read by {}", by(function)),
        (None, None) => "untouched".to_owned(),
    }
}
