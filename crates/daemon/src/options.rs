//! The daemon's command line and `/etc/zfs/zfsrc`, with the meaning they had in zfs-fuse 0.7.

use cli::args::{Bad, Parsed};
use cli::daemon_table::{DAEMON, SWITCHES, VALUES};
use fuse::Transport;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings file.
pub const ZFSRC: &str = "/etc/zfs/zfsrc";
/// Smallest ceiling of the cache, MiB.
const LEAST_ARC: u64 = 16;
/// What the daemon needs beside it, bytes.
const BESIDES: u64 = 128 << 20;

/// How the daemon is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Stay in front.
    pub foreground: bool,
    pub pidfile: Option<PathBuf>,
    /// Where volumes are served, instead of the usual place.
    pub nbd_socket: Option<PathBuf>,
    /// Where else they are served.
    pub nbd: Remote,
    /// Where shares are served over NFS.
    pub nfs_listen: Vec<SocketAddr>,
    /// Scripts in it are run on events.
    pub event_scripts: Option<PathBuf>,
    /// Ceiling of the cache, bytes.
    pub arc_max: u64,
    /// For every mount, split at commas.
    pub mount_options: Vec<String>,
    /// How long the kernel may keep attributes and names; none: as long as it likes, since the
    /// daemon tells it about changes.
    pub attr_timeout: Option<Duration>,
    pub entry_timeout: Option<Duration>,
    /// Read ahead: the kernel in files, the pools in objects (see `dmu::ahead`).
    pub prefetch: bool,
    /// Devices are opened with O_DIRECT, as they are anyway wherever that works.
    #[cfg_attr(not(test), allow(dead_code))]
    pub direct_devices: bool,
    /// The kernel does not cache file data.
    pub direct_files: bool,
    /// How the kernel's requests come.
    pub transport: Transport,
    /// Microseconds processors may take to wake up while mounts are busy.
    pub wakeup_latency: Latency,
    /// Rules for the property `multihost`.
    pub multihost: pool::Multihost,
    /// Raw increments are received without knowing what set of IVs they continue.
    pub ivsets_unchecked: bool,
    /// Things to tell: obsolete settings, values out of range.
    pub warnings: Vec<String>,
}

/// Volumes for other machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remote {
    /// TCP addresses.
    pub listen: Vec<SocketAddr>,
    /// Who may come; empty: everybody with a certificate.
    pub allow: Vec<Network>,
    /// Folder of certificates; none: without TLS.
    pub tls: Option<PathBuf>,
}

/// Addresses with the same beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    address: IpAddr,
    /// Bits of the address that count.
    bits: u32,
}

impl Network {
    /// Reads ADDRESS or ADDRESS/BITS.
    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = match text.contains('/') {
            true => bits.parse().ok().filter(|b| *b <= all)?,
            false => all,
        };
        Some(Network { address, bits })
    }

    /// Whether an address is one of them. One of IPv4 may come as one of IPv6.
    pub fn has(&self, other: IpAddr) -> bool {
        let number = |a: IpAddr| match a {
            IpAddr::V4(a) => (u128::from(a.to_bits()) << 96, true),
            IpAddr::V6(a) => (a.to_bits(), false),
        };
        let ((a, a_is_v4), (b, b_is_v4)) = (number(self.address), number(other.to_canonical()));
        let differ = (a ^ b).checked_shr(128 - self.bits).unwrap_or(0);
        a_is_v4 == b_is_v4 && differ == 0
    }
}

/// How fast idle processors shall wake up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Latency {
    /// As is best on this machine, if it is permitted.
    Auto,
    /// The kernel's affair.
    Off,
    /// Within so many microseconds.
    Within(u32),
}

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub enum Asked {
    Run(Box<Options>),
    Help,
    Version,
    /// A complaint; exit 2.
    Wrong(String),
}

/// Memory of the machine or of the control group, whichever is less, bytes.
pub fn memory() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|t| {
            let line = t.lines().find(|l| l.starts_with("MemTotal:"))?;
            let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
            Some(kib << 10)
        })
        .unwrap_or(1 << 30);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(total, |limit| limit.min(total))
}

/// The least memory limit of the control groups of a process (`/proc/PID/cgroup`) and of those above
/// them, below `root`, bytes.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let path = path.trim_start_matches('/');
            // The second version of control groups has one hierarchy, without a name; the first has one
            // for each controller.
            let (top, file) = if controllers.is_empty() {
                (root.to_path_buf(), "memory.max")
            } else if controllers.split(',').any(|c| c == "memory") {
                (root.join("memory"), "memory.limit_in_bytes")
            } else {
                return None;
            };
            top.join(path)
                .ancestors()
                .take_while(|dir| dir.starts_with(&top))
                .filter_map(|dir| std::fs::read_to_string(dir.join(file)).ok())
                .filter_map(|text| text.trim().parse().ok())
                .min()
        })
        .min()
}

/// The largest ceiling in so much memory: what the ceiling does not cover (see docs/memory.md) needs
/// some, and so do others.
fn most_arc(memory: u64) -> u64 {
    memory
        .saturating_sub((memory / 8).max(BESIDES))
        .max(LEAST_ARC << 20)
}

/// Settings of `zfsrc` as long options, and complaints.
fn read_zfsrc(text: &str, file: &str) -> (Vec<String>, Vec<String>) {
    let (mut options, mut complaints) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((k, v)) => (k.trim(), Some(v.trim().trim_matches('"'))),
            None => (line, None),
        };
        let at = format!("{file}, line {}", number + 1);
        match value {
            None if SWITCHES.contains(&key) => options.push(format!("--{key}")),
            Some(v) if VALUES.contains(&key) => options.push(format!("--{key}={v}")),
            None if VALUES.contains(&key) => {
                complaints.push(format!("{at}: '{key}' needs a value: {key} = VALUE"));
            }
            Some(_) if SWITCHES.contains(&key) => {
                complaints.push(format!("{at}: '{key}' takes no value; ignored"));
            }
            _ => complaints.push(format!("{at}: unknown setting '{key}'; ignored")),
        }
    }
    (options, complaints)
}

/// Reads the command line and the settings file.
pub fn read(args: &[String], zfsrc: &Path, memory: u64) -> Asked {
    let parsed = match Parsed::read("zfs-fuse", &DAEMON, args) {
        Ok(p) => p,
        Err(Bad::Help | Bad::ShortHelp) => return Asked::Help,
        Err(Bad::Usage(what)) | Err(Bad::NotBuilt(what)) => return Asked::Wrong(what),
    };
    if parsed.has("h") {
        return Asked::Help;
    }
    if parsed.has("V") {
        return Asked::Version;
    }
    if let Some(word) = parsed.operands.first() {
        return Asked::Wrong(format!("unexpected argument '{word}'"));
    }
    let mut warnings = Vec::new();
    let file = match std::fs::read_to_string(zfsrc) {
        Ok(text) => {
            let (words, complaints) = read_zfsrc(&text, &zfsrc.display().to_string());
            warnings.extend(complaints);
            Parsed::read("zfs-fuse", &DAEMON, &words).unwrap_or_default()
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Parsed::default(),
        Err(e) => {
            warnings.push(format!(
                "cannot read {}: {}",
                zfsrc.display(),
                base::io_text(&e)
            ));
            Parsed::default()
        }
    };
    match settle(&parsed, &file, memory, warnings) {
        Ok(options) => Asked::Run(Box::new(options)),
        Err(what) => Asked::Wrong(what),
    }
}

/// Warnings about options that old configurations pass and that have no effect.
fn obsolete(has: &dyn Fn(&str) -> bool) -> Vec<String> {
    [
        (
            "v",
            "--vdev-cache-size is obsolete and ignored: there is no cache for each device",
        ),
        (
            "x",
            "--enable-xattr is obsolete and ignored: set the property xattr of file systems",
        ),
        (
            "stack-size",
            "--stack-size is obsolete and ignored: stacks have a fixed size",
        ),
        (
            "no-kstat-mount",
            "--no-kstat-mount is obsolete and ignored: there is no statistics file system",
        ),
        (
            "u",
            "--min-uberblock-txg is obsolete and ignored: use zpool import -F -T TXG",
        ),
        (
            "log-uberblocks",
            "--log-uberblocks is obsolete and ignored: use zdb -u",
        ),
    ]
    .into_iter()
    .filter(|(key, _)| has(key))
    .map(|(_, what)| what.to_string())
    .collect()
}

fn transport(word: Option<&str>) -> Result<Transport, String> {
    match word {
        None | Some("auto") => Ok(Transport::Auto),
        Some("dev") => Ok(Transport::Device),
        Some("uring") => Ok(Transport::Uring),
        Some(text) => Err(format!("--transport: '{text}' is not auto, dev or uring")),
    }
}

/// Addresses that the server of NFS listens at: those of the command line, else those of the file.
fn nfs_listen(line: &Parsed, file: &Parsed) -> Result<Vec<SocketAddr>, String> {
    let address = |text: &str| {
        text.parse().map_err(|_| {
            format!("--nfs-listen: '{text}' is not ADDRESS:PORT, such as 0.0.0.0:2049 or [::]:2049")
        })
    };
    let all = all("nfs-listen", line, file).into_iter();
    all.map(address).collect()
}

/// The values of an option that may be there several times: those of the command line, else those of the file.
fn all<'a>(key: &'static str, line: &'a Parsed, file: &'a Parsed) -> Vec<&'a str> {
    let from = match line.has(key) {
        true => line,
        false => file,
    };
    from.all(key).collect()
}

/// Where volumes are served to other machines. Nobody is let in of whom nothing was said.
fn nbd_remote(line: &Parsed, file: &Parsed) -> Result<Remote, String> {
    let address = |text: &str| {
        text.parse().map_err(|_| {
            format!(
                "--nbd-listen: '{text}' is not ADDRESS:PORT, such as 0.0.0.0:10809 or [::]:10809"
            )
        })
    };
    let network = |text: &str| {
        Network::parse(text)
            .ok_or_else(|| format!("--nbd-allow: '{text}' is not ADDRESS or ADDRESS/BITS"))
    };
    let listen = all("nbd-listen", line, file);
    let allow = all("nbd-allow", line, file);
    let tls = line.get("nbd-tls").or_else(|| file.get("nbd-tls"));
    let remote = Remote {
        listen: listen.into_iter().map(address).collect::<Result<_, _>>()?,
        allow: allow.into_iter().map(network).collect::<Result<_, _>>()?,
        tls: tls.map(|p| PathBuf::from(cli::run::absolute(p))),
    };
    let asks = |p: &PathBuf| nbd::ServerTls::asks_clients(p);
    match remote.listen.is_empty() {
        true if !remote.allow.is_empty() || remote.tls.is_some() => {
            Err("--nbd-allow and --nbd-tls are of no use without --nbd-listen".into())
        }
        false if remote.allow.is_empty() && !remote.tls.as_ref().is_some_and(asks) => Err(
            "--nbd-listen: who may come? Name addresses (--nbd-allow), or a folder of certificates with \
             ca-cert.pem, the authority that signs for clients (--nbd-tls)"
                .into(),
        ),
        _ => Ok(remote),
    }
}

fn settle(
    line: &Parsed,
    file: &Parsed,
    memory: u64,
    mut warnings: Vec<String>,
) -> Result<Options, String> {
    let has = |key: &str| line.has(key) || file.has(key);
    let get = |key: &'static str| line.get(key).or_else(|| file.get(key));
    let seconds = |key: &'static str, name: &str| -> Result<Option<Duration>, String> {
        match get(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<f64>()
                .ok()
                .and_then(|s| Duration::try_from_secs_f64(s).ok())
                .map(Some)
                .ok_or_else(|| format!("--{name}: '{text}' is not a number of seconds")),
        }
    };
    let arc_max = match get("m") {
        None => (memory / 8).clamp(64 << 20, 1 << 30),
        Some(text) => {
            let mb: u64 = text
                .parse()
                .map_err(|_| format!("--max-arc-size: '{text}' is not a number of megabytes"))?;
            if mb < LEAST_ARC {
                return Err(format!(
                    "--max-arc-size: {mb} MB is too little; at least {LEAST_ARC} are needed"
                ));
            }
            let bytes = mb.saturating_mul(1 << 20);
            let most = most_arc(memory);
            if bytes > most {
                warnings.push(format!(
                    "--max-arc-size: {mb} MB is more than the memory has room for; {} MB are used",
                    most >> 20
                ));
            }
            bytes.min(most)
        }
    };
    warnings.extend(obsolete(&has));
    let nfs_listen = nfs_listen(line, file)?;
    let nbd = nbd_remote(line, file)?;
    let transport = transport(get("transport"))?;
    let wakeup_latency = match get("wakeup-latency") {
        None | Some("auto") => Latency::Auto,
        Some("off") => Latency::Off,
        Some(text) => Latency::Within(text.parse().map_err(|_| {
            format!("--wakeup-latency: '{text}' is not auto, off or a number of microseconds")
        })?),
    };
    let number = |key: &'static str, fits: fn(u64) -> bool, rule: &str, default: u64| {
        let Some(text) = get(key) else {
            return Ok(default);
        };
        let n = text.parse().ok().filter(|n| fits(*n));
        n.ok_or_else(|| format!("--{key}: '{text}' is not {rule}"))
    };
    let usual = pool::Multihost::default();
    let multihost = pool::Multihost {
        interval_ms: number(
            "multihost-interval",
            |n| (100..1 << 24).contains(&n),
            "a number of milliseconds from 100 on",
            usual.interval_ms,
        )?,
        fail_intervals: number(
            "multihost-fail-intervals",
            |n| n == 0 || (2..1 << 16).contains(&n),
            "0 or a number of intervals from 2 on",
            usual.fail_intervals,
        )?,
        import_intervals: number(
            "multihost-import-intervals",
            |n| (1..1 << 16).contains(&n),
            "a number of intervals from 1 on",
            usual.import_intervals,
        )?,
    };
    let mut mount_options: Vec<String> = Vec::new();
    for text in file.all("o").chain(line.all("o")) {
        mount_options.extend(
            text.split(',')
                .filter(|o| !o.is_empty())
                .map(str::to_string),
        );
    }
    // What old configurations pass and what is always so here.
    const ALWAYS: [&str; 6] = [
        "allow_other",
        "default_permissions",
        "big_writes",
        "suid",
        "dev",
        "exec",
    ];
    mount_options.retain(|o| !ALWAYS.contains(&o.as_str()));
    Ok(Options {
        foreground: line.has("n"),
        event_scripts: get("event-scripts").map(|p| PathBuf::from(cli::run::absolute(p))),
        nfs_listen,
        nbd,
        nbd_socket: get("nbd-socket").map(|p| PathBuf::from(cli::run::absolute(p))),
        pidfile: line.get("p").map(|p| PathBuf::from(cli::run::absolute(p))),
        arc_max,
        mount_options,
        attr_timeout: seconds("a", "fuse-attr-timeout")?,
        entry_timeout: seconds("e", "fuse-entry-timeout")?,
        prefetch: !has("zfs-prefetch-disable"),
        direct_devices: has("disable-block-cache"),
        direct_files: has("disable-page-cache"),
        transport,
        wakeup_latency,
        multihost,
        ivsets_unchecked: has("zfs-disable-ivset-guid-check"),
        warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn run(line: &str, rc: Option<&str>) -> Asked {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        let path = std::env::temp_dir().join(format!(
            "zfsrc-{}-{:x}",
            std::process::id(),
            line.len() * 1000 + rc.map_or(0, str::len)
        ));
        let _ = std::fs::remove_file(&path);
        if let Some(text) = rc {
            std::fs::write(&path, text).unwrap();
        }
        let asked = read(&args, &path, 4 * GIB);
        let _ = std::fs::remove_file(&path);
        asked
    }

    fn options(line: &str, rc: Option<&str>) -> Options {
        match run(line, rc) {
            Asked::Run(o) => *o,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn volumes_for_other_machines_need_somebody_who_may_come() {
        let wrong = |line: &str, words: &str| {
            assert!(
                matches!(run(line, None), Asked::Wrong(w) if w.contains(words)),
                "{line}"
            );
        };
        wrong("--nbd-listen=127.0.0.1:1", "who may come?");
        wrong(
            "--nbd-listen=127.0.0.1:1 --nbd-tls=/nonexistent",
            "who may come?",
        );
        wrong("--nbd-listen=127.0.0.1 --nbd-allow=::1", "ADDRESS:PORT");
        wrong(
            "--nbd-listen=127.0.0.1:1 --nbd-allow=10.0.0.0/33",
            "ADDRESS/BITS",
        );
        wrong("--nbd-allow=10.0.0.0/8", "without --nbd-listen");
        let line = "--nbd-listen=127.0.0.1:1 --nbd-allow=10.1.0.0/16 --nbd-allow=fe80::/10";
        let o = options(line, Some("nbd-tls = /certificates"));
        assert_eq!(o.nbd.tls, Some("/certificates".into()));
        let may = |a: &str| o.nbd.allow.iter().any(|n| n.has(a.parse().unwrap()));
        for (address, expected) in [
            ("10.1.2.3", true),
            ("10.2.2.3", false),
            ("::ffff:10.1.255.255", true),
            ("fe80::1", true),
            ("febf::1", true),
            ("fec0::1", false),
        ] {
            assert_eq!(may(address), expected, "{address}");
        }
        let all = Network::parse("0.0.0.0/0").unwrap();
        assert!(all.has([1, 2, 3, 4].into()) && !all.has("::1".parse().unwrap()));
        assert_eq!(Network::parse("10.0.0.0/"), None);
    }

    #[test]
    fn defaults_and_all_options() {
        let o = options("", None);
        assert_eq!(o.arc_max, GIB / 2);
        assert!(!o.foreground && o.prefetch && !o.direct_devices && o.warnings.is_empty());
        let o = options(
            "-n -p /run/x.pid -m 100 -o noatime,allow_other -a 1.5 --fuse-entry-timeout=3600 \
             --zfs-prefetch-disable --zfs-disable-ivset-guid-check --disable-block-cache --disable-page-cache --no-kstat-mount",
            None,
        );
        assert!(o.foreground && !o.prefetch && o.direct_devices && o.direct_files);
        assert!(o.ivsets_unchecked);
        assert_eq!(o.pidfile, Some("/run/x.pid".into()));
        assert_eq!(o.arc_max, 100 << 20);
        assert_eq!(o.mount_options, ["noatime"]);
        assert_eq!(o.attr_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(o.entry_timeout, Some(Duration::from_secs(3600)));
        assert!(matches!(&o.warnings[..], [w] if w.contains("--no-kstat-mount")));
        assert_eq!(o.transport, Transport::Auto);
        assert_eq!(o.wakeup_latency, Latency::Auto);
        let o = options("--wakeup-latency=off", Some("wakeup-latency = 3"));
        assert_eq!(o.wakeup_latency, Latency::Off);
        let o = options("", Some("wakeup-latency = 3"));
        assert_eq!(o.wakeup_latency, Latency::Within(3));
        let o = options(
            "--nfs-listen=127.0.0.1:2049 --nfs-listen [::1]:9",
            Some("nfs-listen = 0.0.0.0:1"),
        );
        assert_eq!(
            o.nfs_listen,
            [
                "127.0.0.1:2049".parse().unwrap(),
                "[::1]:9".parse().unwrap()
            ]
        );
        let o = options("", Some("nfs-listen = 0.0.0.0:1"));
        assert_eq!(o.nfs_listen, ["0.0.0.0:1".parse().unwrap()]);
        assert!(
            matches!(run("--nfs-listen=host:1", None), Asked::Wrong(w) if w.contains("ADDRESS:PORT"))
        );
        let o = options("--transport=dev", Some("transport = uring"));
        assert_eq!(o.transport, Transport::Device);
        let o = options("", Some("transport = uring"));
        assert_eq!(o.transport, Transport::Uring);
        let o = options("-v 10 -x --stack-size 32 -u 7 --log-uberblocks", None);
        assert_eq!(o.warnings.len(), 5);
    }

    #[test]
    fn limits_of_control_groups() {
        let root = std::env::temp_dir().join(format!("zfs-cgroup-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let put = |file: &str, text: &str| {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        put("a/memory.max", "3000\n");
        put("a/b/memory.max", "max\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/x/memory.limit_in_bytes", "2000\n");
        put("memory/x/y/memory.limit_in_bytes", "2500\n");
        let limit = |groups: &str| group_limit(groups, &root);
        assert_eq!(limit("0::/a/b\n"), Some(3000));
        assert_eq!(limit("0::/\n"), None);
        assert_eq!(limit("9:name=x:/x\n5:cpu,memory:/x/y\n0::/a\n"), Some(2000));
        assert_eq!(limit("5:memory:/\n"), Some(9223372036854771712));
        assert_eq!(limit("5:cpu:/x\nnonsense\n"), None);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn wrong_ones() {
        for (line, what) in [
            ("-m x", "--max-arc-size: 'x' is not a number of megabytes"),
            (
                "-m 15",
                "--max-arc-size: 15 MB is too little; at least 16 are needed",
            ),
            (
                "-a x",
                "--fuse-attr-timeout: 'x' is not a number of seconds",
            ),
            (
                "-e -1",
                "--fuse-entry-timeout: '-1' is not a number of seconds",
            ),
            (
                "--wakeup-latency=-1",
                "--wakeup-latency: '-1' is not auto, off or a number of microseconds",
            ),
            (
                "--transport=ring",
                "--transport: 'ring' is not auto, dev or uring",
            ),
            ("-q", "invalid option 'q'"),
            ("-p", "missing argument for 'p' option"),
            ("tank", "unexpected argument 'tank'"),
        ] {
            assert_eq!(run(line, None), Asked::Wrong(what.into()), "{line}");
        }
        assert_eq!(run("-h", None), Asked::Help);
        assert_eq!(run("--help", None), Asked::Help);
        assert_eq!(run("--version", None), Asked::Version);
        let o = options("-m 999999", None);
        assert_eq!(o.arc_max, 4 * GIB / 8 * 7);
        assert_eq!(
            o.warnings,
            ["--max-arc-size: 999999 MB is more than the memory has room for; 3584 MB are used"]
        );
        assert_eq!(most_arc(256 << 20), 128 << 20);
        assert_eq!(most_arc(100 << 20), LEAST_ARC << 20);
    }

    /// The file shipped with zfs-fuse 0.7.
    #[test]
    fn settings_file() {
        let rc = "# vdev cache\nvdev-cache-size = 10\nmax-arc-size = 100\n\
                  zfs-prefetch-disable   # yes\nfuse-attr-timeout = 3600\n\
                  fuse-entry-timeout = 3600\n#disable-block-cache\n";
        let o = options("", Some(rc));
        assert_eq!(o.arc_max, 100 << 20);
        assert!(!o.prefetch && !o.direct_devices);
        assert_eq!(o.attr_timeout, Some(Duration::from_secs(3600)));
        assert_eq!(o.warnings.len(), 1);
        // The command line wins.
        assert_eq!(options("-m 200", Some(rc)).arc_max, 200 << 20);
        let o = options("", Some("nonsense = 1\nmax-arc-size\nenable-xattr = 1\n"));
        assert_eq!(o.warnings.len(), 3);
        assert!(o.warnings[0].ends_with("line 1: unknown setting 'nonsense'; ignored"));
    }
}
