//! Plots as SVG (`plotters`): bars on a logarithmic scale around 1, "as fast as"; lines on two such scales.
//!
//! Drawing into a string fails only where a text cannot be measured; then there is no picture.

use crate::markdown::short;
use crate::results::Results;
use crate::rows::Group;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Pixels for the labels beside bars.
const LABEL: i32 = 190;
/// Pixels of the bars' scale.
const WIDTH: i32 = 560;
/// Pixels from one bar to the next of its group.
const BAR: i32 = 10;
/// Pixels between groups of bars.
const GAP: i32 = 6;
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x48, 0x78, 0xa8),
    RGBColor(0xe4, 0x94, 0x44),
    RGBColor(0x6a, 0x9f, 0x58),
    RGBColor(0xd1, 0x61, 0x5d),
    RGBColor(0x85, 0xb6, 0xb2),
    RGBColor(0x96, 0x76, 0x62),
    RGBColor(0xa8, 0x7c, 0x9f),
];
/// Lines of the grid.
const PALE: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const DARK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const TITLE: (&str, i32) = ("sans-serif", 14);
const TEXT: (&str, i32) = ("sans-serif", 11);
const SMALL: (&str, i32) = ("sans-serif", 8);

/// Why nothing was drawn.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A set of bars with a common label.
pub struct Bars {
    pub label: String,
    /// One for each series; none where nothing was measured.
    pub values: Vec<Option<f64>>,
}

/// Every line, all systems against ext4 (or against the first system if there is no ext4).
pub fn lines(r: &Results) -> Option<String> {
    let base = reference(r)?;
    let series: Vec<&String> = r.systems.iter().filter(|s| **s != base).collect();
    let bars: Vec<Bars> = r
        .lines
        .iter()
        .filter(|l| Group::SPEED.contains(&l.group))
        .map(|l| Bars {
            label: l.title(),
            values: series.iter().map(|s| l.faster(s, &base)).collect(),
        })
        .collect();
    let names: Vec<String> = series.iter().map(|s| s.to_string()).collect();
    draw(&format!("How many times as fast as {base}"), &names, &bars)
}

/// Geometric means by group.
pub fn means(r: &Results) -> Option<String> {
    let base = reference(r)?;
    let series: Vec<&String> = r.systems.iter().filter(|s| **s != base).collect();
    let bars: Vec<Bars> = Group::SPEED
        .into_iter()
        .map(Some)
        .chain([None])
        .map(|g| Bars {
            label: g.map_or("all", Group::text).into(),
            values: series
                .iter()
                .map(|s| r.mean((s, &base), g).map(|m| m.0))
                .collect(),
        })
        .collect();
    let names: Vec<String> = series.iter().map(|s| s.to_string()).collect();
    draw(
        &format!("Geometric means: how many times as fast as {base}"),
        &names,
        &bars,
    )
}

fn reference(r: &Results) -> Option<String> {
    let ext4 = r.systems.iter().find(|s| *s == "ext4");
    ext4.or(r.systems.first()).cloned()
}

/// None if there is nothing to draw.
pub fn draw(title: &str, series: &[String], bars: &[Bars]) -> Option<String> {
    let values = || bars.iter().flat_map(|b| b.values.iter().flatten().copied());
    if series.is_empty() || values().next().is_none() {
        return None;
    }
    // Whole powers of ten, with 1 inside.
    let scale = powers(values(), -4, 6, -1..1);
    let group = BAR * series.len() as i32 + GAP;
    let high = 58 + group * bars.len() as i32 + 26;
    picture((LABEL + WIDTH + 50, high), |root| {
        root.draw(&Text::new(title, (10, 8), TITLE))?;
        let mut at = 10;
        for (n, name) in series.iter().enumerate() {
            let box_of = [(at, 32), (at + 10, 42)];
            root.draw(&Rectangle::new(box_of, colour(n).filled()))?;
            root.draw(&Text::new(name.as_str(), (at + 14, 32), TEXT))?;
            at += 34 + 7 * name.chars().count() as i32;
        }
        // Pixels down from the top, so that every bar is where its label is.
        let down = (group * bars.len() as i32).max(1);
        let (from, to) = (10f64.powi(scale.start), 10f64.powi(scale.end));
        let mut chart = ChartBuilder::on(root)
            .margin_top(58)
            .margin_left(LABEL)
            .margin_right(50)
            .x_label_area_size(26)
            .build_cartesian_2d((from..to).log_scale(), down..0)?;
        for n in scale.clone().chain([scale.end]) {
            let v = 10f64.powi(n);
            let line = [(v, 0), (v, down)];
            chart.draw_series([PathElement::new(line, if n == 0 { DARK } else { PALE })])?;
            let place = chart.backend_coord(&(v, down));
            root.draw(&label(format!("{v}"), (place.0, place.1 + 6), HPos::Center))?;
        }
        for (n, b) in bars.iter().enumerate() {
            let top = group * n as i32;
            let place = chart.backend_coord(&(from, top + group / 2));
            root.draw(&label(
                b.label.clone(),
                (LABEL - 6, place.1 - 6),
                HPos::Right,
            ))?;
            for (m, v) in b.values.iter().enumerate() {
                let Some(v) = *v else { continue };
                let (y, end) = (top + GAP / 2 + BAR * m as i32, v.clamp(from, to));
                let bar = [(end.min(1.0), y), (end.max(1.0), y + BAR - 1)];
                chart.draw_series([Rectangle::new(bar, colour(m).filled())])?;
                // What it says, at its end.
                let place = chart.backend_coord(&(end.max(1.0), y));
                let small = SMALL.into_font().color(&DARK);
                root.draw(&Text::new(short(v), (place.0 + 3, place.1), small))?;
            }
        }
        Ok(())
    })
}

/// A curve.
pub struct Line {
    pub label: String,
    /// x, y, and whether the point is marked.
    pub points: Vec<(f64, f64, bool)>,
}

/// Curves that share their axes.
pub struct Panel {
    pub title: String,
    pub lines: Vec<Line>,
}

/// Panels side by side, both scales logarithmic, labels below. None if there is nothing to draw.
pub fn growth(title: &str, panels: &[Panel]) -> Option<String> {
    const PANEL: i32 = 340;
    const HIGH: i32 = 300;
    const TOP: i32 = 34;
    /// Pixels of a line of the legend.
    const ROW: i32 = 14;
    let points = || panels.iter().flat_map(|p| &p.lines).flat_map(|l| &l.points);
    points().next()?;
    let across = powers(points().map(|p| p.0), 0, 9, 0..1);
    let up = powers(points().map(|p| p.1), -6, 9, -1..1);
    let most = panels.iter().map(|p| p.lines.len()).max().unwrap_or(0) as i32;
    let size = (
        40 + PANEL * panels.len() as i32,
        TOP + HIGH + 10 + ROW * most,
    );
    picture(size, |root| {
        root.draw(&Text::new(title, (10, 8), TITLE))?;
        for (k, panel) in panels.iter().enumerate() {
            let left = 10 + PANEL * k as i32;
            let area = root.clone().shrink((left, TOP), (PANEL, HIGH));
            let scale = |r: &Range<i32>| (10f64.powi(r.start)..10f64.powi(r.end)).log_scale();
            let mut chart = ChartBuilder::on(&area)
                .caption(&panel.title, TEXT)
                .margin_right(14)
                .x_label_area_size(24)
                .y_label_area_size(40)
                .build_cartesian_2d(scale(&across), scale(&up))?;
            for n in across.clone().chain([across.end]) {
                let v = 10f64.powi(n);
                let line = [(v, 10f64.powi(up.start)), (v, 10f64.powi(up.end))];
                chart.draw_series([PathElement::new(line, PALE)])?;
                let place = chart.backend_coord(&line[0]);
                root.draw(&label(format!("{v}"), (place.0, place.1 + 6), HPos::Center))?;
            }
            for n in up.clone().chain([up.end]) {
                let v = 10f64.powi(n);
                let line = [(10f64.powi(across.start), v), (10f64.powi(across.end), v)];
                chart.draw_series([PathElement::new(line, if n == 0 { DARK } else { PALE })])?;
                let place = chart.backend_coord(&line[0]);
                root.draw(&label(
                    format!("{v}"),
                    (place.0 - 4, place.1 - 6),
                    HPos::Right,
                ))?;
            }
            for (n, line) in panel.lines.iter().enumerate() {
                // Colours come again; then lines are dashed.
                let (style, dashed) = (colour(n).stroke_width(2), n >= COLOURS.len());
                let path = || line.points.iter().map(|p| (p.0, p.1));
                let y = TOP + HIGH + 10 + ROW * n as i32;
                let mut sample = vec![(left + 20, y), (left + 38, y)];
                match dashed {
                    true => {
                        chart.draw_series(DashedLineSeries::new(path(), 4, 3, style))?;
                        sample[1].0 -= 10;
                        let rest = vec![(left + 32, y), (left + 38, y)];
                        root.draw(&PathElement::new(rest, style))?;
                    }
                    false => {
                        chart.draw_series([PathElement::new(path().collect::<Vec<_>>(), style)])?;
                    }
                }
                root.draw(&PathElement::new(sample, style))?;
                root.draw(&Text::new(line.label.as_str(), (left + 44, y - 6), TEXT))?;
                for p in line.points.iter().filter(|p| p.2) {
                    chart.draw_series([Circle::new((p.0, p.1), 5, style)])?;
                    let place = chart.backend_coord(&(p.0, p.1));
                    let small = SMALL.into_font().color(&DARK);
                    root.draw(&Text::new(short(p.1), (place.0 + 7, place.1 - 4), small))?;
                }
            }
        }
        Ok(())
    })
}

/// The powers of ten, from `least` to `most`, around all `values`, and around those of `inside`.
fn powers(
    values: impl Iterator<Item = f64>,
    least: i32,
    most: i32,
    inside: Range<i32>,
) -> Range<i32> {
    values.fold(inside, |range, v| {
        let log = v.clamp(10f64.powi(least), 10f64.powi(most)).log10();
        let (low, high) = (log.floor() as i32, log.ceil() as i32);
        range.start.min(low)..range.end.max(high)
    })
}

/// What `draw` draws on a white picture of this size in pixels.
fn picture(
    size: (i32, i32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Failure>,
) -> Option<String> {
    let mut out = String::new();
    let size = (u32::try_from(size.0).ok()?, u32::try_from(size.1).ok()?);
    let root = SVGBackend::with_string(&mut out, size).into_drawing_area();
    root.fill(&WHITE).ok()?;
    draw(&root).ok()?;
    root.present().ok()?;
    drop(root);
    Some(out)
}

/// A text that ends at a place, or is centred there; its upper side there.
fn label(text: String, at: (i32, i32), side: HPos) -> Text<'static, (i32, i32), String> {
    let style = TEXT
        .into_font()
        .color(&BLACK)
        .pos(Pos::new(side, VPos::Top));
    Text::new(text, at, style)
}

fn colour(n: usize) -> RGBColor {
    COLOURS[n % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn() {
        let r = crate::results::tests::sample();
        let svg = lines(&r).unwrap();
        // The bars, with what they say, and the legend.
        let of = |svg: &str, n: usize| {
            let RGBColor(r, g, b) = colour(n);
            svg.matches(&format!("fill=\"#{r:02X}{g:02X}{b:02X}\""))
                .count()
        };
        assert_eq!(of(&svg, 0) + of(&svg, 1), 4 + 2, "{svg}");
        assert!(svg.contains("seq write") && svg.contains("0.50"), "{svg}");
        assert!(means(&r).unwrap().contains("zfs-fuse-0.7"));
        assert!(lines(&Results::default()).is_none());
        let odd = Bars {
            label: "a<b & c".into(),
            values: vec![Some(0.0), None, Some(1e9)],
        };
        let names = ["x", "y", "z"].map(String::from);
        let svg = draw("t", &names, &[odd]).unwrap();
        assert!(svg.contains("a&lt;b &amp; c") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
