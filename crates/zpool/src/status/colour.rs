//! `zpool status` in colours: painted after the text is made, by what its lines are.

use cli::colour::{paint, Colour};

const LABELS: [&str; 11] = [
    "pool:",
    "state:",
    "status:",
    "action:",
    "see:",
    "scrub:",
    "scan:",
    "remove:",
    "checkpoint:",
    "expand:",
    "config:",
];

fn of_state(word: &str) -> Option<Colour> {
    match word {
        "FAULTED" | "UNAVAIL" | "SUSPENDED" | "CORRUPT" => Some(Colour::Red),
        "DEGRADED" | "OFFLINE" | "REMOVED" | "SPLIT" => Some(Colour::Yellow),
        _ => None,
    }
}

fn painted_state(word: &str) -> String {
    of_state(word).map_or_else(|| word.to_string(), |c| paint(c, word))
}

/// The report of a pool with its labels, states and errors painted.
pub fn painted(text: &str) -> String {
    let mut out = String::new();
    let mut advice = false;
    for line in text.split_inclusive('\n') {
        let body = line.trim_end_matches('\n');
        let end = &line[body.len()..];
        let label = body.find(':').map(|at| body.split_at(at + 1));
        let label = label.filter(|(l, _)| LABELS.contains(&l.trim_start()) || *l == "errors:");
        match label {
            Some((label, rest)) => {
                advice = matches!(label.trim_start(), "status:" | "action:");
                out.push_str(&paint(Colour::Bold, label));
                out.push_str(&match label.trim_start() {
                    "state:" => format!(" {}", painted_state(rest.trim_start())),
                    "status:" | "action:" => paint(Colour::Yellow, rest),
                    "errors:" if rest != " No known data errors" => paint(Colour::Red, rest),
                    _ => rest.to_string(),
                });
            }
            None if advice && body.starts_with('\t') => out.push_str(&paint(Colour::Yellow, body)),
            None if body.starts_with("\tNAME ") => out.push_str(&paint(Colour::Bold, body)),
            None if body.starts_with('\t') => out.push_str(&painted_row(body)),
            None => out.push_str(body),
        }
        out.push_str(end);
    }
    out
}

/// A row of the table of vdevs: its state, and counters that are not 0.
fn painted_row(row: &str) -> String {
    const STATES: [&str; 7] = [
        "FAULTED", "UNAVAIL", "DEGRADED", "OFFLINE", "REMOVED", "SPLIT", "ONLINE",
    ];
    let place = |word: &'static str| Some((row.find(&format!("  {word} "))? + 2, word));
    let Some((at, state)) = STATES.into_iter().find_map(place) else {
        return row.to_string();
    };
    let mut out = row[..at].to_string();
    out.push_str(&painted_state(state));
    let mut counters = true;
    for (n, word) in row[at + state.len()..].split(' ').enumerate() {
        if n > 0 {
            out.push(' ');
        }
        counters &= word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit());
        match counters && !word.is_empty() && word != "0" {
            true => out.push_str(&paint(Colour::Red, word)),
            false => out.push_str(word),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cli::colour::Colours;
    use std::io::Write;

    #[test]
    fn states_and_errors_stand_out() {
        let text = "  pool: tank\n state: DEGRADED\nstatus: One\n\ttwo.\nconfig:\n\n\tNAME  STATE     READ\n\
                    \ttank  ONLINE       0     0    12\n\t  sda  FAULTED      3     0     0  was /dev/a 7\n\n\
                    errors: 2 data errors, use '-v' for a list\n";
        let mut out = Colours(Vec::new(), true);
        write!(out, "{}", painted(text)).unwrap();
        let shown = String::from_utf8(out.0).unwrap();
        let shown = shown.replace("\x1b[0m", "}").replace("\x1b[1m", "B{");
        let shown = shown.replace("\x1b[31m", "R{").replace("\x1b[33m", "Y{");
        let want =
            "B{  pool:} tank\nB{ state:} Y{DEGRADED}\nB{status:}Y{ One}\nY{\ttwo.}\nB{config:}\n\n\
                    B{\tNAME  STATE     READ}\n\ttank  ONLINE       0     0    R{12}\n\
                    \t  sda  R{FAULTED}      R{3}     0     0  was /dev/a 7\n\n\
                    B{errors:}R{ 2 data errors, use '-v' for a list}\n";
        assert_eq!(shown, want);
    }
}
