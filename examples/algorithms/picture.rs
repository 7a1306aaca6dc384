//! The picture: the requests that each algorithm admits of the same arrivals, and those at a fixed window's edge.

use std::{array, fmt::Write as _};

use limit::Window;

use crate::five::{self, NAMES};

/// Twenty in ten seconds, over a minute.
const LIMIT: u32 = 20;
const WINDOW: u64 = 10;
const MINUTE: u64 = 60;

/// A whole minute of 2026, so that windows begin at 0, 10, 20 …
const BEGIN: u64 = 1_795_276_800_000_000;

/// Milliseconds of a column.
const COLUMN: u64 = 500;
const COLUMNS: usize = (MINUTE * 1000 / COLUMN) as usize;

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 806.0;
/// The edges of the time axis.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 856.0;
/// The distance between rows, and the height of one request.
const ROW: f64 = 78.0;
const REQUEST: f64 = 7.6;
/// The baselines of the first row and of the curves.
const FIRST_FLOOR: f64 = 142.0;
const EDGE_FLOOR: f64 = 768.0;

/// The light and the dark theme.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:13px;fill:#24292f}\
.title{font-size:16px;font-weight:600}.small{font-size:11.5px;fill:#57606a}.of-fixed{fill:#bc4c00}.of-sliding{fill:#8250df}.of-exact{fill:#0969da}\
.middle{text-anchor:middle}.end{text-anchor:end}\
.page{fill:#fff;stroke:#d0d7de}.edge{stroke:#d0d7de;stroke-dasharray:2 3}.floor{stroke:#8c959f}\
.arrived{fill:#d0d7de}.admitted{fill:#0969da}\
.limit{stroke:#24292f;stroke-dasharray:6 4}.line{fill:none;stroke-width:2;stroke-linejoin:round}\
.fixed{stroke:#bc4c00}.sliding{stroke:#8250df}.exact{stroke:#0969da}.beyond{fill:#bc4c00;fill-opacity:.16}\
@media(prefers-color-scheme:dark){\
text{fill:#e6edf3}.small{fill:#9198a1}.of-fixed{fill:#f0883e}.of-sliding{fill:#ab7df8}.of-exact{fill:#4493f8}\
.page{fill:#0d1117;stroke:#3d444d}.edge{stroke:#3d444d}.floor{stroke:#656c76}\
.arrived{fill:#3d444d}.admitted{fill:#4493f8}\
.limit{stroke:#e6edf3}.fixed{stroke:#f0883e}.sliding{stroke:#ab7df8}.exact{stroke:#4493f8}.beyond{fill:#f0883e}}";

/// The whole SVG.
pub(crate) fn draw() -> String {
    let Some(window) = Window::of_seconds(WINDOW) else { return String::new() };
    let times = arrivals();
    let admitted = five::counters(LIMIT.into(), window).map(|mut counter| {
        times.iter().copied().filter(|time| counter.admits(BEGIN + time)).collect::<Vec<u64>>()
    });
    let mut svg = Svg::new();
    svg.text(24.0, 34.0, "title", "The same requests under a limit of 20 in 10 seconds");
    svg.block(LEFT, 58.0, "arrived");
    svg.text(LEFT + 17.0, 68.0, "small", "arrived");
    svg.block(LEFT + 74.0, 58.0, "admitted");
    svg.text(LEFT + 91.0, 68.0, "small", "admitted, in half a second each");
    for (row, (name, admitted)) in NAMES.iter().zip(&admitted).enumerate() {
        svg.row(FIRST_FLOOR + ROW * index(row), name, &times, admitted);
    }
    svg.seconds(FIRST_FLOOR + ROW * 4.0 + 17.0);
    edge_of_a_window(&mut svg, &admitted);
    svg.finish()
}

/// Few requests, a peak across the edge at 10 s, twice the limit, a pause, and a burst. In microseconds.
fn arrivals() -> Vec<u64> {
    let evenly = |from: u64, to: u64, every: usize| (from..to).step_by(every).map(|millis| millis * 1000 + 1);
    let mut times: Vec<u64> = evenly(2_500, 7_500, 1_500).collect();
    times.extend(evenly(8_000, 12_000, 80));
    times.extend(evenly(12_500, 24_000, 1_250));
    times.extend(evenly(25_000, 40_000, 250));
    times.extend(evenly(48_000, 50_000, 90));
    times.extend(evenly(51_000, 60_000, 1_000));
    times
}

/// The number of requests admitted in the ten seconds before each moment, around the end of the first window.
fn edge_of_a_window(svg: &mut Svg, admitted: &[Vec<u64>; 5]) {
    const END: u64 = 25_000;
    let place = |millis: u64, hits: usize| (across(millis, END), EDGE_FLOOR - 4.9 * index(hits));
    let limit = LIMIT as usize;
    svg.text(24.0, EDGE_FLOOR - 238.0, "title", "Admitted in the 10 seconds before, across a window’s edge");
    for second in (0..=25).step_by(5) {
        let (x, top) = place(second * 1000, 43);
        svg.text(x, EDGE_FLOOR + 17.0, "small middle", &format!("{second} s"));
        if second > 0 && second % WINDOW == 0 {
            svg.line((x, top), (x, EDGE_FLOOR), "edge");
        }
    }
    for hits in [0, limit, 2 * limit] {
        svg.text(LEFT - 10.0, place(0, hits).1 + 4.0, "small end", &hits.to_string());
    }
    let curve = |of: usize| -> Vec<(f64, f64)> {
        let held = |millis: u64| {
            let now = millis * 1000;
            admitted[of].iter().filter(|at| **at <= now && **at + WINDOW * 1_000_000 > now).count()
        };
        (0..=END).step_by(20).map(|millis| place(millis, held(millis))).collect()
    };
    let curves: [Vec<(f64, f64)>; 3] = array::from_fn(curve);
    svg.area(&curves[0], place(0, limit).1, "beyond");
    svg.line(place(0, limit), place(END, limit), "limit");
    for (of, class) in [(0, "fixed"), (1, "sliding"), (2, "exact")] {
        svg.curve(&curves[of], class);
    }
    svg.line((LEFT, EDGE_FLOOR), (RIGHT, EDGE_FLOOR), "floor");
    let labels = [
        (place(1_000, limit), -7.0, "small", "the limit"),
        (place(11_500, 2 * limit), -8.0, "of-fixed", "fixed window: 20 before the edge, 20 behind it"),
        (place(10_900, 27), 0.0, "of-sliding", "sliding window: a few too many"),
        (place(10_300, 16), 0.0, "of-exact", "sliding log: never more than 20"),
    ];
    for ((x, y), lower, class, text) in labels {
        svg.text(x, y + lower, class, text);
    }
}

struct Svg(String);

impl Svg {
    fn new() -> Self {
        let mut svg = Self(String::new());
        svg.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"title about\">\n<title id=\"title\">Five algorithms and the same requests</title>\n\
             <desc id=\"about\">What each algorithm admits of the same bursty arrivals, and how a fixed window \
             admits twice its limit across its edge.</desc>\n<style>{STYLE}</style>\n\
             <rect class=\"page\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>",
            WIDTH - 1.0,
            HEIGHT - 1.0
        ));
        svg
    }

    fn finish(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"));
    }

    fn block(&mut self, x: f64, y: f64, class: &str) {
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"11\" height=\"11\" rx=\"2\" class=\"{class}\"/>"
        ));
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.put(format_args!("<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" class=\"{class}\"/>"));
    }

    /// Columns of the requests that arrived, and in front of them those that were admitted.
    fn row(&mut self, floor: f64, name: &str, arrived: &[u64], admitted: &[u64]) {
        for second in (0..=MINUTE).step_by(10) {
            let x = across(second * 1000, MINUTE * 1000);
            self.line((x, floor - 54.0), (x, floor), "edge");
        }
        self.columns(floor, arrived, "arrived");
        self.columns(floor, admitted, "admitted");
        self.line((LEFT, floor), (RIGHT, floor), "floor");
        self.text(24.0, floor - 22.0, "", &name.replace('_', " "));
        self.text(24.0, floor - 6.0, "small", &format!("{} of {}", admitted.len(), arrived.len()));
    }

    fn columns(&mut self, floor: f64, times: &[u64], class: &str) {
        let mut heights = [0_usize; COLUMNS];
        for time in times {
            if let Some(height) =
                usize::try_from(time / 1000 / COLUMN).ok().and_then(|at| heights.get_mut(at))
            {
                *height += 1;
            }
        }
        let wide = (RIGHT - LEFT) / index(COLUMNS);
        let mut path = String::new();
        for (at, height) in heights.iter().enumerate().filter(|(_, height)| **height > 0) {
            let (x, high) = (LEFT + wide * index(at) + 0.6, REQUEST * index(*height));
            let _ = write!(path, "M{x:.1} {floor:.1}v{:.1}h{:.1}v{high:.1}z", -high, wide - 1.2);
        }
        self.put(format_args!("<path d=\"{path}\" class=\"{class}\"/>"));
    }

    fn seconds(&mut self, y: f64) {
        for second in (0..=MINUTE).step_by(10) {
            self.text(across(second * 1000, MINUTE * 1000), y, "small middle", &format!("{second} s"));
        }
    }

    fn curve(&mut self, points: &[(f64, f64)], class: &str) {
        self.put(format_args!("<path d=\"{}\" class=\"line {class}\"/>", steps(points)));
    }

    /// The area between a curve and a line below it.
    fn area(&mut self, points: &[(f64, f64)], floor: f64, class: &str) {
        let above: Vec<(f64, f64)> = points.iter().map(|(x, y)| (*x, y.min(floor))).collect();
        self.put(format_args!("<path d=\"{}V{floor:.1}H{LEFT:.1}z\" class=\"{class}\"/>", steps(&above)));
    }
}

/// A step function through the points. Points of equal height are left out.
fn steps(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    let mut height = f64::NAN;
    for (x, y) in points {
        if path.is_empty() {
            let _ = write!(path, "M{x:.1} {y:.1}");
        } else if (y - height).abs() > 0.01 {
            let _ = write!(path, "H{x:.1}V{y:.1}");
        }
        height = *y;
    }
    if let Some((x, _)) = points.last() {
        let _ = write!(path, "H{x:.1}");
    }
    path
}

/// The horizontal position of a moment.
#[expect(clippy::cast_precision_loss, reason = "at most a minute of milliseconds")]
fn across(millis: u64, all: u64) -> f64 {
    LEFT + (RIGHT - LEFT) * millis as f64 / all as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts of a picture")]
fn index(number: usize) -> f64 {
    number as f64
}
