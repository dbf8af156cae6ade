//! Plots as SVG, drawn plainly: bars on a logarithmic scale around 1, "as fast as".

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
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escape(title)
    );
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
