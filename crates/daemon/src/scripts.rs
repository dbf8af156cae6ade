//! Scripts that are run on events (`--event-scripts=FOLDER`).
//!
//! Every executable file of the folder is run for every event, in the order of their names, one at a time. They get what the event
//! daemon of OpenZFS gives to its scripts: `ZEVENT_EID`, `ZEVENT_CLASS`, `ZEVENT_SUBCLASS`, `ZEVENT_TIME`, `ZEVENT_TIME_SECS`,
//! `ZEVENT_TIME_NSECS`, `ZEVENT_TIME_STRING`, and `ZEVENT_NAME` for each value of the payload. A file that others than its owner may
//! write, or that neither root nor the user of the daemon owns, is not run, and none of a folder of which that is true. Events that come
//! faster than scripts end are left out when more than the list of events holds wait; the log says how many.

use admin::Admin;
use api::{Event, EventValue};
use privilege::{Program, Ran};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A script that runs longer is ended.
const LONGEST: Duration = Duration::from_secs(10);
const SLEEP: Duration = Duration::from_secs(5);

/// Runs the scripts of `folder` on what happens from now on, until the daemon is over.
pub fn watch(admin: &Arc<Admin>, folder: PathBuf) {
    let admin = Arc::downgrade(admin);
    let run = move || {
        let mut after = 0;
        while let Some(admin) = admin.upgrade() {
            let last = admin.events.last();
            let (new, _) = admin.events.after(after);
            let left_out = new.first().map_or(0, |e| e.eid.saturating_sub(after + 1));
            if left_out > 0 {
                crate::log::warn(&format!(
                    "{left_out} events had no scripts run: they came too fast, or were cleared"
                ));
            }
            for event in &new {
                after = after.max(event.eid);
                for script in scripts(&folder) {
                    run_script(&script, event);
                }
            }
            if new.is_empty() {
                // Cleared ones are not waited for.
                after = after.max(last);
                admin.events.wait(after, SLEEP);
            }
        }
    };
    let started = std::thread::Builder::new().name("events".into()).spawn(run);
    if let Err(e) = started {
        crate::log::warn(&format!("no thread for scripts: {}", base::io_text(&e)));
    }
}

/// The scripts, by name.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let trusted = |m: &std::fs::Metadata| (m.uid() == 0 || m.uid() == own) && m.mode() & 0o022 == 0;
    // Who may write the folder could exchange a file that was looked at.
    if !std::fs::metadata(folder).is_ok_and(|m| trusted(&m)) {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut out: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0 && trusted(&m))
        })
        .collect();
    out.sort();
    out
}

/// The environment of an event.
fn variables(e: &Event) -> Vec<(String, String)> {
    let subclass = e.class.rsplit('.').next().unwrap_or_default();
    let seconds = e.seconds;
    let mut out: Vec<(String, String)> = [
        ("EID", e.eid.to_string()),
        ("CLASS", e.class.clone()),
        ("SUBCLASS", subclass.to_string()),
        ("TIME", format!("{seconds} {}", e.nanoseconds)),
        ("TIME_SECS", seconds.to_string()),
        ("TIME_NSECS", e.nanoseconds.to_string()),
        ("TIME_STRING", cli::time::ctime(seconds, &cli::time::zone())),
    ]
    .map(|(n, v)| (format!("ZEVENT_{n}"), v))
    .into();
    for (name, value) in &e.pairs {
        let value = match value {
            EventValue::Text(t) => t.clone(),
            EventValue::Number(n) => format!("{n:#x}"),
        };
        out.push((format!("ZEVENT_{}", name.to_uppercase()), value));
    }
    out
}

fn run_script(script: &Path, e: &Event) {
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    let mut environment = vec![("PATH".to_string(), path.to_string())];
    environment.extend(variables(e));
    let script_run = privilege::acts().run(&Program {
        environment: Some(environment),
        limit: Some(LONGEST),
        ..Program::new(script, &[])
    });
    let script = script.display();
    match script_run {
        Ok(Ran::Ended(_)) => {}
        Ok(Ran::TookTooLong) => crate::log::warn(&format!(
            "{script} took longer than {LONGEST:?} and is ended"
        )),
        Err(e) => crate::log::warn(&format!("{script}: {}", base::io_text(&e))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn scripts_run_in_order_with_the_event_in_their_environment() {
        let dir = testkit::TempDir::new("scripts").unwrap();
        let out = dir.path().join("out");
        let folder = dir.path().join("d");
        std::fs::create_dir(&folder).unwrap();
        for (name, mode) in [
            ("b", 0o755),
            ("a", 0o700),
            ("open", 0o777),
            ("plain", 0o644),
        ] {
            let path = folder.join(name);
            let text = format!(
                "#!/bin/sh\necho {name} $ZEVENT_SUBCLASS $ZEVENT_POOL $ZEVENT_VDEV_GUID >> {}\n",
                out.display()
            );
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let event = Event {
            eid: 1,
            class: "sysevent.fs.zfs.vdev_add".into(),
            pairs: vec![
                ("pool".into(), EventValue::Text("tank".into())),
                ("vdev_guid".into(), EventValue::Number(255)),
            ],
            ..Event::default()
        };
        for script in scripts(&folder) {
            run_script(&script, &event);
        }
        let said = std::fs::read_to_string(&out).unwrap();
        assert_eq!(said, "a vdev_add tank 0xff\nb vdev_add tank 0xff\n");
    }
}
