//! What was seen of a latch's cache line, for a terminal: a short table and one sentence.

use std::collections::BTreeMap;

use super::format;
use crate::model::{LineWatch, TouchingFunction, Verdict, WatchedWord};

/// How many functions are told of a word.
const FUNCTIONS: usize = 4;
/// How many CPUs are told of a word.
const CPUS: usize = 4;
/// Widest that an object's or a function's name may be.
const NAME: usize = 46;

/// The whole report, ending with a newline.
pub fn text(watch: &LineWatch) -> String {
    let mut out = head(watch);
    out.push_str(&format!(
        "{:>7}  {:NAME$} {:>8} {:>7} {:>7}  CPUs\n",
        "offset", "what", "touches", "per ms", "writes"
    ));
    let mut untouched: Vec<&WatchedWord> = Vec::new();
    for word in &watch.words {
        if word.touches == 0 {
            untouched.push(word);
            continue;
        }
        out.push_str(&flush(&mut untouched));
        out.push_str(&row(word));
    }
    out.push_str(&flush(&mut untouched));
    out.push_str(&format!("\n{}\n", sentence(watch)));
    out
}

fn head(watch: &LineWatch) -> String {
    let which = if watch.instances > 1 {
        format!(", the one of {} with most waiters ({})", watch.instances, format::percent(watch.waiters_share))
    } else {
        String::new()
    };
    let others = if watch.hits_of_others > 0 {
        format!(" ({} of another process)", format::count(watch.hits_of_others as f64))
    } else {
        String::new()
    };
    let cost = watch.ns_per_hit.map_or(String::new(), |ns| format!(", {} each", format::nanoseconds(ns)));
    format!(
        "{} at {}{which}\ncache line of {} bytes · {} bursts in {:.1}s on {} CPUs, each at most {}ms and {} accesses to a word on a \
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

/// One line for words in a row that nobody touched; leaves none.
fn flush(untouched: &mut Vec<&WatchedWord>) -> String {
    let range = match untouched[..] {
        [] => return String::new(),
        [word] => offset(word),
        [first, .., last] => format!("{}…{}", offset(first), offset(last)),
    };
    untouched.clear();
    format!("{range:>7}  not touched\n")
}

fn offset(word: &WatchedWord) -> String {
    format!("{:+}", word.offset)
}

fn row(word: &WatchedWord) -> String {
    let mut out = format!(
        "{:>7}  {:NAME$} {:>8} {:>7} {:>7}  {}\n",
        offset(word),
        cut(&what(word), NAME),
        format::count(word.touches as f64),
        format::count(per_ms(word)),
        format::percent(ratio(word.writes, word.touches)),
        cpus(&word.by_cpu, word.touches),
    );
    for function in word.functions.iter().take(FUNCTIONS) {
        let share = format::percent(ratio(function.touches, word.touches));
        let writes = format::percent(ratio(function.writes, function.touches));
        let instruction = function.instruction.as_deref().unwrap_or_default();
        let line =
            format!("{:11}{:44} {share:>8} {:>7} {writes:>7}  {instruction}", "", cut(&function.function, 44), "");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// What a word is: the latch, or a neighbour by name.
fn what(word: &WatchedWord) -> String {
    match (&word.object, word.is_latch) {
        (_, true) => "the latch".to_owned(),
        (Some(object), false) => format!("neighbour: {object}"),
        (None, false) => "neighbour".to_owned(),
    }
}

fn cut(name: &str, width: usize) -> String {
    super::names::cut_middle(name, width)
}

fn per_ms(word: &WatchedWord) -> f64 {
    if word.watched_ns == 0 {
        return 0.0;
    }
    word.touches as f64 * 1e6 / word.watched_ns as f64
}

/// `0 52%, 1 48%`, and how many more.
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

/// The verdict with its evidence.
fn sentence(watch: &LineWatch) -> String {
    let all = &watch.moves;
    let moved = format!(
        "{} of {} accesses ({}) came from another CPU than the one before and moved the line",
        all.moved,
        all.followed,
        format::percent(ratio(all.moved, all.followed))
    );
    let far = if all.between_places > 0 {
        format!(", {} of them between NUMA nodes or last caches", format::percent(ratio(all.between_places, all.moved)))
    } else {
        String::new()
    };
    let blamed = |is: fn(&WatchedWord) -> bool, part: fn(&WatchedWord) -> u64| {
        let words: Vec<String> = watch
            .words
            .iter()
            .filter(|word| is(word))
            .map(|word| {
                let share = format::percent(ratio(part(word), word.moves.moved));
                format!("{} ({}), {share} of the line's moves while it was watched", described(word), toucher(word))
            })
            .collect();
        words.join("; ")
    };
    match watch.verdict {
        Verdict::FalseSharing => format!(
            "FALSE SHARING: threads that do not have the latch take its cache line away by touching {}. {moved}{far}.",
            blamed(WatchedWord::is_foreign, |word| word.moves.foreign)
        ),
        Verdict::Shared => format!(
            "NO FALSE SHARING, but the latch is not alone on its line: threads that use it also use {}, and fetch the line again \
             when others have touched the latch meanwhile. {moved}{far}.",
            blamed(WatchedWord::is_users, |word| word.moves.user)
        ),
        Verdict::LatchOnly => format!("NO FALSE SHARING: the latch itself is what threads share. {moved}{far}."),
        Verdict::Still => format!("NO FALSE SHARING: the line hardly moves between CPUs. {moved}."),
        Verdict::Quiet => format!(
            "TOO LITTLE was seen to tell: {} accesses that followed another. Watch again while the latch is contended.",
            all.followed
        ),
    }
}

fn described(word: &WatchedWord) -> String {
    match &word.object {
        Some(object) => format!("{object} at {}", offset(word)),
        None => format!("what lies at {}", offset(word)),
    }
}

/// `written by f`, `read by f`: who touches a word most.
fn toucher(word: &WatchedWord) -> String {
    let writes = word.functions.iter().max_by_key(|function| function.writes).filter(|function| function.writes > 0);
    let by = |function: &TouchingFunction| cut(&function.function, 60);
    match (writes, word.functions.first()) {
        (Some(function), _) => format!("written by {}", by(function)),
        (None, Some(function)) => format!("read by {}", by(function)),
        (None, None) => "untouched".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Moves;

    fn word(offset: i64, touches: u64, moves: Moves) -> WatchedWord {
        let function = TouchingFunction {
            function: "count_pages".into(),
            touches,
            writes: touches,
            instruction: Some("lock xadd %rax,(%rdi)".into()),
        };
        WatchedWord {
            offset,
            is_latch: offset == 0,
            object: (offset == 8).then(|| "buf_stat+8".into()),
            watched_ns: 10_000_000,
            touches,
            writes: touches,
            by_cpu: BTreeMap::from([(0, touches / 4), (1, touches - touches / 4)]),
            functions: if touches > 0 { vec![function] } else { Vec::new() },
            moves,
        }
    }

    fn watch(verdict: Verdict, neighbour: Moves) -> LineWatch {
        let none = Moves::default();
        let words =
            vec![word(-8, 0, none), word(0, 400, none), word(8, 200, neighbour), word(16, 0, none), word(24, 0, none)];
        LineWatch {
            latch: "wait/synch/mutex/innodb/trx_sys_mutex".into(),
            address: "0x7f00001000".into(),
            instances: 3,
            waiters_share: 0.75,
            line_bytes: 64,
            cpus: 2,
            bursts: 35,
            burst_ms: 10,
            hits_per_burst: 200,
            seconds: 2.25,
            hits: 700,
            hits_of_others: 0,
            ns_per_hit: Some(15_000.0),
            words,
            moves: neighbour,
            verdict,
        }
    }

    #[test]
    fn a_neighbour_to_blame_is_named_with_the_evidence() {
        let moves = Moves { followed: 400, moved: 200, foreign: 150, latch: 50, ..Moves::default() };
        let expected = "\
wait/synch/mutex/innodb/trx_sys_mutex at 0x7f00001000, the one of 3 with most waiters (75.0%)
cache line of 64 bytes · 35 bursts in 2.2s on 2 CPUs, each at most 10ms and 200 accesses to a word on a CPU · 700 accesses seen, 15.0µs each

 offset  what                                            touches  per ms  writes  CPUs
     -8  not touched
     +0  the latch                                           400      40    100%  1 75%, 0 25%
           count_pages                                      100%            100%  lock xadd %rax,(%rdi)
     +8  neighbour: buf_stat+8                               200      20    100%  1 75%, 0 25%
           count_pages                                      100%            100%  lock xadd %rax,(%rdi)
+16…+24  not touched

FALSE SHARING: threads that do not have the latch take its cache line away by touching buf_stat+8 at +8 (written by count_pages), 75.0% of the line's moves while it was watched. 200 of 400 accesses (50.0%) came from another CPU than the one before and moved the line.
";
        let text = text(&watch(Verdict::FalseSharing, moves));
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn every_verdict_says_what_it_rests_on() {
        let moves = Moves { followed: 400, moved: 200, between_places: 100, user: 150, ..Moves::default() };
        let says = |verdict, words: &[&str]| {
            let text = text(&watch(verdict, moves));
            let last = text.lines().last().unwrap_or_default();
            assert!(words.iter().all(|word| last.contains(word)), "{last}");
        };
        says(
            Verdict::Shared,
            &["NO FALSE SHARING, but", "buf_stat+8 at +8", "75.0% of", "50.0% of them between NUMA nodes"],
        );
        says(Verdict::LatchOnly, &["NO FALSE SHARING: the latch itself", "200 of 400"]);
        says(Verdict::Still, &["NO FALSE SHARING: the line hardly moves", "200 of 400"]);
        says(Verdict::Quiet, &["TOO LITTLE", "400 accesses"]);
    }
}
