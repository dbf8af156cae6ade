//! Plots as SVG, drawn plainly: bars on a logarithmic scale around 1, "as fast as"; lines on two such scales.

use crate::markdown::short;
use crate::results::Results;
use crate::rows::Group;
use std::fmt::Write as _;

const LABEL: f64 = 190.0;
const WIDTH: f64 = 560.0;
const BAR: f64 = 9.0;
const COLOURS: [&str; 7] = [
    "#4878a8", "#e49444", "#6a9f58", "#d1615d", "#85b6b2", "#967662", "#a87c9f",
];

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
    let low = values().fold(0.1, f64::min).max(1e-4).log10().floor();
    let high = values().fold(10.0, f64::max).min(1e6).log10().ceil();
    let x = |v: f64| LABEL + (v.clamp(1e-4, 1e6).log10() - low) / (high - low) * WIDTH;
    let group = BAR * series.len() as f64 + 6.0;
    let top = 58.0;
    let bottom = top + group * bars.len() as f64;
    let (w, h) = (LABEL + WIDTH + 50.0, bottom + 24.0);
    let mut out = begin(title, w, h);
    let mut at = 10.0;
    for (n, name) in series.iter().enumerate() {
        let _ = writeln!(
            out,
            "<rect x=\"{at}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"41\">{}</text>",
            colour(n),
            at + 14.0,
            escape(name)
        );
        at += 34.0 + 7.0 * name.len() as f64;
    }
    let mut tick = low;
    while tick <= high {
        let v = 10f64.powf(tick);
        let stroke = if tick == 0.0 { "#333" } else { "#ddd" };
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"{stroke}\"/>\
             <text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\">{v}</text>",
            x(v),
            bottom + 14.0
        );
        tick += 1.0;
    }
    for (n, b) in bars.iter().enumerate() {
        let y = top + group * n as f64;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LABEL - 6.0,
            y + group / 2.0 + 3.0,
            escape(&b.label)
        );
        for (m, v) in b.values.iter().enumerate() {
            let Some(v) = v else { continue };
            let (from, to) = (x(1.0).min(x(*v)), x(1.0).max(x(*v)));
            let y = y + 3.0 + BAR * m as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\">\
                 <title>{} {}: {}</title></rect>",
                (to - from).max(0.5),
                BAR - 1.0,
                colour(m),
                escape(&b.label),
                escape(series.get(m).map_or("", |s| s)),
                short(*v)
            );
        }
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// The beginning of a drawing: white, with its title.
fn begin(title: &str, w: f64, h: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escape(title)
    )
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
    const PANEL: f64 = 300.0;
    const HIGH: f64 = 260.0;
    const TOP: f64 = 60.0;
    let lines = || panels.iter().flat_map(|p| &p.lines);
    let points = || lines().flat_map(|l| &l.points);
    points().next()?;
    let log = |v: f64| v.clamp(1e-6, 1e9).log10();
    let right = points().map(|p| log(p.0)).fold(1.0, f64::max).ceil();
    let low = points().map(|p| log(p.1)).fold(-1.0, f64::min).floor();
    let high = points().map(|p| log(p.1)).fold(1.0, f64::max).ceil();
    let y = |v: f64| TOP + (high - log(v)) / (high - low) * HIGH;
    let most = panels.iter().map(|p| p.lines.len()).max().unwrap_or(0);
    let w = 40.0 + panels.len() as f64 * (PANEL + 40.0);
    let h = TOP + HIGH + 34.0 + 14.0 * most as f64;
    let mut out = begin(title, w, h);
    for (k, panel) in panels.iter().enumerate() {
        let left = 40.0 + k as f64 * (PANEL + 40.0);
        let x = |v: f64| left + log(v) / right * PANEL;
        let _ = writeln!(
            out,
            "<text x=\"{left}\" y=\"{}\">{}</text>",
            TOP - 10.0,
            escape(&panel.title)
        );
        for n in low as i32..=high as i32 {
            let v = 10f64.powi(n);
            let stroke = if n == 0 { "#333" } else { "#ddd" };
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"{stroke}\"/>\
                 <text x=\"{2}\" y=\"{1:.1}\" text-anchor=\"end\">{v}</text>",
                left + PANEL,
                y(v),
                left - 4.0
            );
        }
        for n in 0..=right as i32 {
            let v = 10f64.powi(n);
            let _ = writeln!(
                out,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1}\" stroke=\"#ddd\"/>\
                 <text x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\">{v}</text>",
                x(v),
                TOP + HIGH,
                TOP + HIGH + 14.0
            );
        }
        for (n, line) in panel.lines.iter().enumerate() {
            let path: Vec<String> = line
                .points
                .iter()
                .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
                .collect();
            // Colours come again; then lines are dashed.
            let dash = if n < COLOURS.len() {
                ""
            } else {
                " stroke-dasharray=\"4 3\""
            };
            let label = TOP + HIGH + 34.0 + 14.0 * n as f64;
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{2}\" stroke-width=\"1.5\"{dash}/>\
                 <line x1=\"{3}\" x2=\"{4}\" y1=\"{5}\" y2=\"{5}\" stroke=\"{2}\" stroke-width=\"2\"{dash}/>\
                 <text x=\"{6}\" y=\"{7}\">{1}</text>",
                path.join(" "),
                escape(&line.label),
                colour(n),
                left,
                left + 18.0,
                label - 4.0,
                left + 24.0,
                label
            );
            for p in line.points.iter().filter(|p| p.2) {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\">\
                     <title>{}: {}</title></circle>",
                    x(p.0),
                    y(p.1),
                    colour(n),
                    escape(&line.label),
                    short(p.1)
                );
            }
        }
    }
    out.push_str("</svg>\n");
    Some(out)
}

fn colour(n: usize) -> &'static str {
    COLOURS[n % COLOURS.len()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn() {
        let r = crate::results::tests::sample();
        let svg = lines(&r).unwrap();
        assert_eq!(svg.matches("<title>").count(), 4, "{svg}");
        assert!(svg.contains("<title>seq write ours: 0.50</title>"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), svg.matches("fill=").count());
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
