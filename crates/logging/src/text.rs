//! Events as lines of text, and the way to the journal.

use cli::harmless::harmless;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::{Context, Layer};

/// The socket of syslog.
const SYSLOG: &str = "/dev/log";
/// syslog's number of the facility for daemons, times eight.
const FACILITY: u8 = 3 * 8;

/// Whether standard error leads to the journal: systemd puts device and inode of the stream into `JOURNAL_STREAM`.
pub(crate) fn stderr_is_journal() -> bool {
    let Ok(asked) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|s| asked == format!("{}:{}", s.st_dev, s.st_ino))
}

/// The layer that sends to the journal's socket, if there is one. Fields keep their names, in capitals.
pub(crate) fn journal(program: &str) -> Option<tracing_journald::Layer> {
    let layer = tracing_journald::layer().ok()?;
    let priorities = PriorityMappings {
        error: Priority::Error,
        warn: Priority::Warning,
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
    };
    Some(
        layer
            .with_field_prefix(None)
            .with_syslog_identifier(program.to_string())
            .with_priority_mappings(priorities),
    )
}

/// Where lines go.
#[derive(Clone, Copy)]
pub(crate) enum Sink {
    Stderr,
    /// Standard error for warnings and errors if nobody listens.
    Syslog,
}

/// The layer that makes lines.
pub(crate) struct Text {
    program: &'static str,
    sink: Sink,
}

impl Text {
    pub(crate) fn new(program: &'static str, sink: Sink) -> Text {
        Text { program, sink }
    }
}

impl<S: Subscriber> Layer<S> for Text {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let text = harmless(&line(event));
        if let Sink::Syslog = self.sink {
            let record = syslog_record(self.program, std::process::id(), level, &text);
            let sent = UnixDatagram::unbound().and_then(|s| s.send_to(record.as_bytes(), SYSLOG));
            // Nobody keeps a log here: whoever starts the daemon is told what goes wrong, no more.
            if sent.is_ok() || level > Level::WARN {
                return;
            }
        }
        let _ = writeln!(std::io::stderr(), "{}: {text}", self.program);
    }
}

/// A record as `/dev/log` takes it.
fn syslog_record(program: &str, pid: u32, level: Level, text: &str) -> String {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    format!("<{}>{program}[{pid}]: {text}", FACILITY + severity)
}

/// Message and fields of an event: `message name=value name=value`.
fn line(event: &Event<'_>) -> String {
    let mut line = Line::default();
    event.record(&mut line);
    if line.message.is_empty() {
        return line.fields.trim_start().to_string();
    }
    line.message + &line.fields
}

#[derive(Default)]
struct Line {
    message: String,
    /// A blank before each.
    fields: String,
}

impl Line {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match value.contains([' ', '"', '=']) && field.name() != "message" {
            true => self.put(field, format_args!("{value:?}")),
            false => self.put(field, format_args!("{value}")),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt;

    struct Keep(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Keep {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().unwrap().push(line(event));
        }
    }

    #[test]
    fn a_line_has_the_message_and_then_the_fields() {
        let seen = Arc::default();
        let subscriber = tracing_subscriber::registry().with(Keep(Arc::clone(&seen)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("plain text = 1");
            tracing::warn!(pool = "tank", txg = 7u64, "{} failed", "a write");
            tracing::debug!(vdev = "/dev/a b", error = %"no \"space\"");
        });
        assert_eq!(
            *seen.lock().unwrap(),
            [
                "plain text = 1",
                "a write failed pool=tank txg=7",
                "vdev=\"/dev/a b\" error=no \"space\"",
            ]
        );
    }

    #[test]
    fn syslog_gets_facility_and_severity() {
        for (level, number) in [
            (Level::ERROR, 27),
            (Level::WARN, 28),
            (Level::INFO, 30),
            (Level::DEBUG, 31),
        ] {
            assert_eq!(
                syslog_record("zfs-fuse", 5, level, "x"),
                format!("<{number}>zfs-fuse[5]: x")
            );
        }
    }
}
