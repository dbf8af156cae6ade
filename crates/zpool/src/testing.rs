//! A fake daemon for tests, which answers from data.

use api::*;
use cli::Backend;

/// Answers from a list of pools and notes every other request.
#[derive(Default)]
pub struct Fake {
    pub pools: Vec<Pool>,
    pub importable: Vec<Importable>,
    pub history: Vec<HistoryRecord>,
    pub upgraded: Option<Upgraded>,
    pub refuse: Option<ApiError>,
    pub unplayed: Vec<String>,
    pub split: Split,
    pub vdevs: Vec<VdevProps>,
    pub events: Events,
    pub seen: Vec<Request>,
}

impl Fake {
    pub fn with(pools: Vec<Pool>) -> Fake {
        Fake {
            pools,
            ..Fake::default()
        }
    }
}

impl Backend for Fake {
    fn ask(
        &mut self,
        request: &Request,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError> {
        if let Request::Events { .. } = request {
            return Ok(Reply::Events(self.events.clone()));
        }
        if let Request::PoolGet(get) = request {
            let mut answer = Answer::default();
            let mut names = get.pools.clone();
            if names.is_empty() {
                names = self.pools.iter().map(|p| p.name.clone()).collect();
                names.sort();
            }
            for name in names {
                match self.pools.iter().find(|p| p.name == name) {
                    Some(p) => {
                        let mut p = p.clone();
                        if !get.tree {
                            p.facts = PoolFacts::default();
                        }
                        match &get.props {
                            Select::Nothing => p.props.clear(),
                            Select::All => {}
                            Select::These(list) => {
                                p.props = list
                                    .iter()
                                    .filter(|n| *n != "name")
                                    .map(|n| {
                                        let have = p.props.iter().find(|q| q.name == *n);
                                        have.cloned().unwrap_or(Prop {
                                            name: n.clone(),
                                            ..Prop::default()
                                        })
                                    })
                                    .collect();
                            }
                        }
                        answer.found.push(p);
                    }
                    None => {
                        let error = ApiError::no_such_pool(&name);
                        answer.failed.push((name, error));
                    }
                }
            }
            return Ok(Reply::Pools(answer));
        }
        self.seen.push(request.clone());
        if let Some(e) = &self.refuse {
            return Err(e.clone());
        }
        Ok(match request {
            Request::ImportScan(_) => Reply::Importable(self.importable.clone()),
            Request::PoolImport(i) => Reply::Imported(Imported {
                name: i.new_name.clone().unwrap_or_else(|| i.pool.clone()),
                unplayed: self.unplayed.clone(),
                ..Imported::default()
            }),
            Request::PoolHistory { .. } => Reply::History(self.history.clone()),
            Request::PoolUpgrade { .. } => {
                Reply::Upgraded(self.upgraded.clone().unwrap_or_default())
            }
            Request::Version {} => Reply::Version(Version {
                daemon: "9.9.9".into(),
            }),
            Request::SupportedFeatures {} => Reply::Features(vec![Feature {
                name: "async_destroy".into(),
                guid: "com.delphix:async_destroy".into(),
                description: "Destroy filesystems asynchronously.".into(),
                read_only_compatible: true,
            }]),
            Request::PoolWear(w) => Reply::Batch(api::Batch {
                done: w.devices.clone(),
                ..api::Batch::default()
            }),
            Request::VdevGet(_) => Reply::VdevProps(Answer {
                found: self.vdevs.clone(),
                failed: Vec::new(),
            }),
            Request::PoolSplit(_) => Reply::Split(self.split.clone()),
            Request::PoolActivity { .. } => Reply::Activity(vec![]),
            _ => Reply::Done,
        })
    }

    fn running(&mut self) -> bool {
        true
    }
}

/// Runs `zpool LINE` (split at blanks): exit status, stdout, stderr.
pub fn run(line: &str, fake: &mut Fake) -> (i32, String, String) {
    let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut cx = cli::Cx {
        out: &mut out,
        err: &mut err,
        backend: fake,
        zone: tz::TimeZone::utc(),
        tty: false,
        rows: None,
        env: |_| None,
        line: cli::run::command_line("zpool", &args),
    };
    let status = cli::run::main_with(&cli::zpool_table::ZPOOL, &args, &mut cx, crate::run).unwrap();
    let text = |b| String::from_utf8(b).unwrap();
    (status, text(out), text(err))
}

/// A device.
pub fn leaf(path: &str, class: VdevClass) -> Vdev {
    let kind = if path.starts_with("/dev/") {
        VdevKind::Disk
    } else {
        VdevKind::File
    };
    let mut v = group(kind, 0, class, vec![]);
    v.path = Some(path.into());
    v
}

/// A group.
pub fn group(kind: VdevKind, id: u64, class: VdevClass, children: Vec<Vdev>) -> Vdev {
    Vdev {
        kind,
        id,
        guid: 1000 + id,
        class,
        path: None,
        whole_disk: false,
        not_present: false,
        state: VdevState::Online,
        aux: VdevAux::None,
        stats: VdevStats::default(),
        histograms: None,
        children,
    }
}

/// A healthy pool: a mirror, a log and a spare.
pub fn sample(name: &str) -> Pool {
    let (size, alloc) = (960 << 20, 132 << 10);
    let number = |n: &str, v: u64, s: Source| Prop::new(n, v, s);
    let mut a = leaf("/dev/sda1", VdevClass::Normal);
    a.whole_disk = true;
    a.stats.physical = 1 << 30;
    let mut b = leaf("/img/b", VdevClass::Normal);
    b.stats.physical = 1 << 30;
    let mut mirror = group(VdevKind::Mirror, 0, VdevClass::Normal, vec![a, b]);
    mirror.stats.space = size;
    mirror.stats.alloc = alloc;
    mirror.stats.fragmentation = Some(0);
    let mut root = group(
        VdevKind::Root,
        0,
        VdevClass::Normal,
        vec![
            mirror,
            leaf("/dev/sdc", VdevClass::Log),
            leaf("/dev/sdd", VdevClass::Spare),
        ],
    );
    root.stats.space = size;
    root.stats.alloc = alloc;
    Pool {
        name: name.into(),
        guid: 42,
        txg: 7,
        version: 5000,
        zpl_version: 5,
        health: "ONLINE".into(),
        props: vec![
            number("size", size, Source::None),
            number("capacity", 0, Source::None),
            Prop {
                name: "altroot".into(),
                source: Source::Default,
                ..Prop::default()
            },
            Prop::new("health", "ONLINE", Source::None),
            number("guid", 42, Source::None),
            Prop {
                name: "version".into(),
                value: Value::Number(5000),
                source: Source::Default,
                received: None,
            },
            Prop::new("failmode", "wait", Source::Default),
            number("free", size - alloc, Source::None),
            number("allocated", alloc, Source::None),
            number("dedupratio", 100, Source::None),
            number("fragmentation", 0, Source::None),
            number("expandsize", 0, Source::None),
            number("checkpoint", 0, Source::None),
            Prop::new("feature@async_destroy", "enabled", Source::Local),
        ],
        tree: Some(root),
        now_ns: 3_000_000_000,
        import_ns: 1_000_000_000,
        error_count: Some(0),
        ..Pool::default()
    }
}
