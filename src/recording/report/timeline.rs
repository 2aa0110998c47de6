//! Draws rows over time: a heat map of the whole recording, and each part of it in every second.
//!
//! The page has no script. A part is hidden until the page's address names it, which following a link does.

use maud::{html, Markup};

use super::Report;
use crate::present::format;
use crate::present::names::cut_middle;

/// The most columns of a heat map. In a longer recording, each column covers several seconds.
const MOST_COLUMNS: usize = 120;
/// The place of what is over time, and the greatest of a column.
const WIDTH: f64 = 940.0;
const COLUMN: f64 = 24.0;
/// How long a name may be, in characters, the place of each, and the least place of all: that of `at most 12.34`.
const NAME: usize = 40;
const CHARACTER: f64 = 6.5;
const LEAST_NAMES: usize = 90;
/// The height of a row of the heat map, and of a part.
const ROW: usize = 18;
const PART_ROW: usize = 32;
/// The height of the highest bar of a part.
const BAR: f64 = 28.0;
/// The height of the times.
const TIMES: usize = 20;
/// How many strengths a color has.
const SHADES: f64 = 10.0;
/// The most parts, and the fewest seconds of each.
const MOST_PARTS: usize = 12;
const SHORTEST_PART: usize = 10;
/// How many values all parts have, which bounds the size of the page, and their rows.
const MOST_VALUES: usize = 9_000;
const PART_ROWS: [usize; 2] = [2, 12];
/// Rows whose figures are read to who does not see the chart.
const SPOKEN: usize = 8;

/// A part of the recording, in seconds since its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    from: f64,
    to: f64,
}

/// Seconds in each second of the recording, of one row.
struct Row<'a> {
    name: &'a str,
    seconds: &'a [f64],
    /// The same, divided by the length of each second.
    values: Vec<f64>,
    mean: f64,
    /// The most, and when that second ended.
    most: f64,
    most_at: f64,
}

/// Rows over time.
struct Timeline<'a> {
    /// The beginning of the names by which parts are linked.
    id: &'static str,
    rows: Vec<Row<'a>>,
    /// When each second ended, since the beginning of the recording.
    at: &'a [f64],
    began_ms: u64,
    /// What a value counts.
    counted: &'static str,
}

/// Returns a heat map with a line for each row, and below it links to parts of the recording in every second. `rows`
/// have seconds in each second; the more there are, the stronger the color. `id` is unique on the page, and `counted`
/// says what a value counts.
pub(crate) fn timeline(
    id: &'static str,
    rows: &[(String, Vec<f64>)],
    report: &Report,
    counted: &'static str,
) -> Markup {
    let at = &report.at[..];
    let rows = rows.iter().map(|(name, seconds)| Row::new(name, seconds, at)).collect();
    Timeline { id, rows, at, began_ms: report.began_ms, counted }.markup()
}

impl<'a> Row<'a> {
    fn new(name: &'a str, seconds: &'a [f64], at: &[f64]) -> Row<'a> {
        let values = columns_of(seconds, at, 1);
        let (most, most_at) = values
            .iter()
            .zip(at)
            .fold((0.0, 0.0), |most, (&value, &at)| if value > most.0 { (value, at) } else { most });
        let length = at.last().copied().unwrap_or(0.0);
        let mean = if length > 0.0 { seconds.iter().sum::<f64>() / length } else { 0.0 };
        Row { name, seconds, values, mean, most, most_at }
    }
}

impl Timeline<'_> {
    fn markup(&self) -> Markup {
        let parts = self.parts();
        html! {
            div id=(self.id) {
                (self.overview())
                @if !parts.is_empty() { (self.links(&parts)) }
            }
            p.soft {
                (format!("The strongest color stands for {:.2} {}. Times are in UTC.", self.columns().1, self.counted))
                @if !parts.is_empty() { " Follow a time to see every second from there to the next." }
            }
            @for (i, part) in parts.iter().enumerate() { (self.part(i, &parts, part)) }
        }
    }

    fn length(&self) -> f64 {
        self.at.last().copied().unwrap_or(0.0)
    }

    fn clock(&self, at: f64) -> String {
        format::clock(self.began_ms.saturating_add((at * 1e3) as u64))
    }

    /// Returns how many seconds each column covers, and the highest value of a column.
    fn columns(&self) -> (usize, f64) {
        let step = self.at.len().div_ceil(MOST_COLUMNS).max(1);
        let of_row = |row: &Row| columns_of(row.seconds, self.at, step).into_iter().fold(0.0, f64::max);
        (step, self.rows.iter().map(of_row).fold(0.0, f64::max))
    }

    /// Returns the scale of the heat map.
    fn scale(&self) -> Scale {
        let columns = self.at.len().div_ceil(self.columns().0) as f64;
        let part = Part { from: 0.0, to: self.length() };
        Scale { part, left: self.left(), width: (columns * COLUMN).min(WIDTH).floor() }
    }

    /// Returns the place that the names take.
    fn left(&self) -> usize {
        let longest = self.rows.iter().map(|row| row.name.chars().count().min(NAME)).max().unwrap_or(0);
        ((longest as f64 * CHARACTER) as usize + 10).max(LEAST_NAMES)
    }

    fn overview(&self) -> Markup {
        let (step, most) = self.columns();
        let scale = self.scale();
        let height = self.rows.len() * ROW + TIMES;
        let has_parts = !self.parts().is_empty();
        let ended: Vec<f64> = self.at.chunks(step).filter_map(|seconds| seconds.last().copied()).collect();
        html! {
            svg width=(scale.left as f64 + scale.width + 40.0) height=(if has_parts { height - TIMES } else { height })
                role="img" aria-label=(self.spoken(scale.part)) {
                @for (y, row) in self.rows.iter().enumerate() {
                    g {
                        title { (row.name) ": " (self.figures(row)) }
                        text x="0" y=(y * ROW + 13) { (cut_middle(row.name, NAME)) }
                        @for (shade, path) in cells(&columns_of(row.seconds, self.at, step), &ended, most, &scale, y) {
                            path.cells stroke-opacity=(format!("{:.1}", shade as f64 / SHADES)) d=(path) {}
                        }
                    }
                }
                @if !has_parts { (self.times(&scale, height)) }
            }
        }
    }

    fn times(&self, scale: &Scale, height: usize) -> Markup {
        html! {
            @for (x, time) in ticks(self.began_ms, scale) { text x=(x) y=(height - 6) { (time) } }
        }
    }

    /// Returns what is read to who does not see a chart of this part.
    fn spoken(&self, part: Part) -> String {
        let ms = |at: f64| self.began_ms.saturating_add((at * 1e3) as u64);
        let rows = self.rows.iter().take(SPOKEN).map(|row| format!("{} {}", row.name, self.figures(row)));
        format!(
            "{} over time, {}. In the whole recording: {}",
            self.counted,
            format::period(ms(part.from), ms(part.to)),
            rows.collect::<Vec<_>>().join("; ")
        )
    }

    fn figures(&self, row: &Row) -> String {
        format!("{:.2} on average, at most {:.2} at {}", row.mean, row.most, self.clock(row.most_at))
    }

    /// Returns equal parts, each with enough seconds; none if there would be only one.
    fn parts(&self) -> Vec<Part> {
        let longest = (self.length() as usize).min(self.at.len());
        let parts = (longest / SHORTEST_PART).min(MOST_PARTS);
        let bound = |i: usize| self.length() * i as f64 / parts as f64;
        (0..parts).filter(|_| parts > 1).map(|i| Part { from: bound(i), to: bound(i + 1) }).collect()
    }

    /// Returns a link to each part, below the columns that it has.
    fn links(&self, parts: &[Part]) -> Markup {
        let width = self.scale().width / parts.len() as f64;
        html! {
            nav aria-label=(format!("parts of the time: {}", self.counted)) style=(format!("margin-left:{}px", self.left())) {
                @for (i, part) in parts.iter().enumerate() {
                    a href=(format!("#{}-{}", self.id, i + 1)) style=(format!("width:{width:.1}px"))
                        aria-label=(format!("{} from {} to {} UTC", self.counted, self.clock(part.from),
                            self.clock(part.to))) { (self.clock(part.from)) }
                }
            }
        }
    }

    /// Returns one of the parts, with a bar for every second.
    fn part(&self, i: usize, parts: &[Part], part: &Part) -> Markup {
        let id = |i: usize| format!("{}-{}", self.id, i + 1);
        let scale = Scale { part: *part, left: self.left(), width: WIDTH };
        let rows = (MOST_VALUES / self.at.len().max(1)).clamp(PART_ROWS[0], PART_ROWS[1]);
        let shown: Vec<&Row> = self.rows.iter().filter(|row| row.most > 0.0).take(rows).collect();
        let height = shown.len() * PART_ROW + TIMES;
        let heading = format!("{} to {} UTC", self.clock(part.from), self.clock(part.to));
        html! {
            section.part id=(id(i)) tabindex="-1" aria-label=(format!("{}, {heading}", self.counted)) {
                p {
                    b { (heading) }
                    @if i > 0 { a href=(format!("#{}", id(i - 1))) { "earlier" } }
                    @if i + 1 < parts.len() { a href=(format!("#{}", id(i + 1))) { "later" } }
                    a href=(format!("#{}", self.id)) { "close" }
                }
                div {
                    svg width=(scale.left as f64 + WIDTH + 40.0) height=(height) role="img" aria-label=(self.spoken(*part)) {
                        @for (y, row) in shown.iter().enumerate() {
                            text x="0" y=(y * PART_ROW + 13) { (cut_middle(row.name, NAME)) }
                            text x="0" y=(y * PART_ROW + 26) { (format!("at most {:.2}", row.most)) }
                            line.axis x1=(scale.left) x2=(scale.left as f64 + WIDTH) y1=((y + 1) * PART_ROW - 2)
                                y2=((y + 1) * PART_ROW - 2) {}
                            path.bar d=(bars(row, self.at, &scale, (y + 1) * PART_ROW - 2)) {}
                        }
                        (self.times(&scale, height))
                    }
                }
                p.soft { "Each row has a height of its own: that of its highest second in the whole recording." }
            }
        }
    }
}

/// Where the seconds of a part are: right of the names.
struct Scale {
    part: Part,
    left: usize,
    width: f64,
}

impl Scale {
    /// Returns the place of a moment, in whole pixels, which is within the part's.
    fn x(&self, at: f64) -> usize {
        let length = (self.part.to - self.part.from).max(f64::MIN_POSITIVE);
        self.left + (((at - self.part.from) / length).clamp(0.0, 1.0) * self.width).round() as usize
    }
}

/// Returns each column's seconds, divided by the time that passed.
fn columns_of(seconds: &[f64], at: &[f64], step: usize) -> Vec<f64> {
    let mut began = 0.0;
    let column = |(seconds, at): (&[f64], &[f64])| {
        let ended = at.last().copied().unwrap_or(began);
        let value = seconds.iter().sum::<f64>() / (ended - std::mem::replace(&mut began, ended));
        if value.is_finite() {
            value
        } else {
            0.0
        }
    };
    seconds.chunks(step).zip(at.chunks(step)).map(column).collect()
}

/// Returns a row of the heat map: for each strength of the color, the lines where it has that, as SVG has them.
fn cells(columns: &[f64], ended: &[f64], most: f64, scale: &Scale, y: usize) -> Vec<(usize, String)> {
    // A square root, and at least the weakest, so that little is distinguishable from nothing.
    let shade = |value: f64| match (value / most).sqrt() {
        least @ 0.01.. => (least * SHADES).round().max(1.0) as usize,
        _ => 0,
    };
    let middle = y * ROW + ROW / 2 - 1;
    let mut paths = vec![String::new(); SHADES as usize + 1];
    let mut began = 0.0;
    for (&value, &ended) in columns.iter().zip(ended) {
        let [from, to] = [scale.x(std::mem::replace(&mut began, ended)), scale.x(ended)];
        if to > from {
            paths[shade(value).min(SHADES as usize)] += &format!("M{from} {middle}h{}", to - from);
        }
    }
    paths.into_iter().enumerate().skip(1).filter(|(_, path)| !path.is_empty()).collect()
}

/// Returns the bars of a row in a part as one shape, as SVG has it.
fn bars(row: &Row, at: &[f64], scale: &Scale, bottom: usize) -> String {
    // Little is distinguishable from nothing.
    let height = |value: f64| if value > 0.0 { (value / row.most * BAR).round().max(1.0) as isize } else { 0 };
    let mut path = format!("M{} {bottom}", scale.left);
    let (mut x, mut now, mut flat) = (scale.left, 0, 0);
    for (&value, &ended) in row.values.iter().zip(at) {
        let to = scale.x(ended);
        // What ended before the part, or shows as nothing.
        if to <= x {
            continue;
        }
        let (width, height) = (to - x, height(value));
        if height != now {
            if flat > 0 {
                path += &format!("h{flat}");
            }
            path += &format!("v{}", now - height);
            (now, flat) = (height, 0);
        }
        flat += width;
        x = to;
    }
    path + &format!("h{flat}V{bottom}z")
}

/// Returns round times within a part, with their places.
fn ticks(began_ms: u64, scale: &Scale) -> Vec<(usize, String)> {
    const STEPS: [f64; 12] = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];
    /// The least distance of two, and of the last from the end.
    const APART: f64 = 70.0;
    let Part { from, to } = scale.part;
    let most = (scale.width / APART).floor().max(1.0);
    let step = STEPS.into_iter().find(|step| (to - from) / step <= most).unwrap_or((to - from) / most);
    let began = began_ms as f64 / 1e3;
    let first = ((began + from) / step).ceil() * step - began;
    let tick = |i: usize| first + i as f64 * step;
    let times = (0..=most as usize).map(tick).take_while(|at| *at <= to);
    times.map(|at| (scale.x(at), format::clock(began_ms.saturating_add((at * 1e3).round() as u64)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-24 20:30:05 UTC.
    const BEGAN: u64 = 1_795_552_205_000;

    fn rows(name: &str, seconds: &[f64]) -> Vec<(String, Vec<f64>)> {
        vec![(name.to_owned(), seconds.to_vec())]
    }

    fn drawn(rows: &[(String, Vec<f64>)], at: &[f64]) -> String {
        let rows = rows.iter().map(|(name, seconds)| Row::new(name, seconds, at)).collect();
        Timeline { id: "waits", rows, at, began_ms: BEGAN, counted: "threads waiting" }.markup().into_string()
    }

    fn seconds(n: u32) -> Vec<f64> {
        (1..=n).map(f64::from).collect()
    }

    #[test]
    fn a_column_of_a_long_recording_covers_several_seconds() {
        let at = seconds(241);
        // One second in each, but for none in the first column, and four times as many in the last.
        let map = drawn(&rows("trx_mutex", &[vec![0.0; 3], vec![1.0; 237], vec![4.0]].concat()), &at);
        let has = |words: &str| assert!(map.contains(words), "{words}: {map}");
        let overview = map.split("</svg>").next().unwrap();
        has("trx_mutex: 1.00 on average, at most 4.00 at 20:34:06");
        has("The strongest color stands for 4.00 threads waiting.");
        // 81 columns: the first is empty, and the last is a single second.
        has(r#"<path class="cells" stroke-opacity="1.0" d="M1026 8h4">"#);
        assert_eq!(overview.matches("<path").count(), 2, "two strengths: {overview}");
        assert_eq!(overview.split_once("<path").unwrap().1.matches(" 8h").count(), 80, "{overview}");
    }

    #[test]
    fn parts_have_all_seconds_and_are_linked() {
        let at = seconds(3600);
        let page = drawn(&rows("trx_mutex", &vec![0.5; 3600]), &at);
        assert_eq!(page.matches("<section class=\"part\"").count(), MOST_PARTS);
        for words in [
            r##"<a href="#waits-12""##,
            r#"aria-label="threads waiting from 20:30:05 to 20:35:05 UTC">20:30:05</a>"#,
            r#"id="waits-12" tabindex="-1" aria-label="threads waiting, 21:25:05 to 21:30:05 UTC""#,
            ">20:31:00</text>",
            r##"<a href="#waits">close</a>"##,
        ] {
            assert!(page.contains(words), "{words}");
        }
        let parts = Timeline { id: "", rows: Vec::new(), at: &at, began_ms: 0, counted: "" }.parts();
        assert_eq!((parts[0].from, parts[11].to), (0.0, 3600.0));
        assert!(parts.windows(2).all(|pair| pair[0].to == pair[1].from));
    }

    #[test]
    fn a_part_has_the_height_of_every_second() {
        let at = seconds(20);
        let values = [vec![0.0; 10], vec![1.0, 0.0, 0.5, 0.5, 0.001], vec![0.0; 5]].concat();
        let row = Row::new("x", &values, &at);
        let scale = Scale { part: Part { from: 10.0, to: 20.0 }, left: 260, width: WIDTH };
        assert_eq!(bars(&row, &at, &scale, 30), "M260 30v-28h94v28h94v-14h188v13h94v1h470V30z");
        let before = Scale { part: Part { from: 0.0, to: 10.0 }, left: 260, width: WIDTH };
        assert_eq!(bars(&row, &at, &before, 30), "M260 30h940V30z");
    }

    #[test]
    fn short_recordings_have_no_parts() {
        let one = drawn(&rows("x", &[0.5]), &[1.0]);
        assert!(!one.contains("<nav") && !one.contains("<section") && one.contains(r#"d="M90 8h24""#), "{one}");
        assert!(one.contains(">20:30:05</text>"), "{one}");
        assert!(!drawn(&rows("x", &[0.5; 19]), &seconds(19)).contains("<nav"));
        assert_eq!(drawn(&rows("x", &[0.5; 20]), &seconds(20)).matches("<section").count(), 2);
        // Nothing waited for, and no rows at all.
        let idle = drawn(&rows("x", &[0.0; 20]), &seconds(20));
        assert!(!idle.contains("<path class=\"cells\"") && !idle.contains("NaN"), "{idle}");
        assert!(!drawn(&[], &[]).contains("NaN"));
    }

    #[test]
    fn a_gap_is_as_wide_as_it_was_long() {
        // The host was suspended for half a minute.
        let at: Vec<f64> = (1..=10).chain(40..=49).map(f64::from).collect();
        let values = [vec![1.0; 10], vec![0.0], vec![1.0; 9]].concat();
        let map = drawn(&rows("x", &values), &at);
        // 20 columns of 24 pixels for 49 seconds.
        assert!(map.contains("M178 8h10M482 8h10"), "{map}");
    }

    #[test]
    fn times_are_round() {
        let of = |from: f64, to: f64| -> Vec<String> {
            let scale = Scale { part: Part { from, to }, left: 260, width: WIDTH };
            ticks(BEGAN, &scale).into_iter().map(|(_, time)| time).collect()
        };
        assert_eq!(of(0.0, 10.0)[..2], ["20:30:05", "20:30:06"]);
        assert_eq!(of(300.0, 600.0)[..2], ["20:35:30", "20:36:00"]);
        assert_eq!(of(0.0, 3600.0)[..2], ["20:35:00", "20:40:00"]);
        // What only a damaged file has.
        let scale = Scale { part: Part { from: 0.0, to: 1.8e10 }, left: 260, width: WIDTH };
        assert!(ticks(u64::MAX, &scale).len() <= 14);
        assert!(ticks(0, &scale).len() <= 14);
    }

    #[test]
    fn names_are_escaped() {
        let page = drawn(&rows("<b>\"&", &[0.5; 20]), &seconds(20));
        assert!(!page.contains("<b>\"") && page.contains("&lt;b&gt;&quot;&amp; 0.50 on average"), "{page}");
    }
}
