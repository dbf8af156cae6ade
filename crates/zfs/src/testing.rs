//! A fake daemon for tests, which answers from data.

use api::*;
use cli::Backend;

/// Answers from a list of datasets and notes every request.
#[derive(Default)]
pub struct Fake {
    pub datasets: Vec<Dataset>,
    pub refuse: Option<ApiError>,
    pub answer: Option<Reply>,
    /// Answers to the first requests, in this order.
    pub first: std::collections::VecDeque<Reply>,
    pub seen: Vec<Request>,
}

impl Fake {
    pub fn with(datasets: Vec<Dataset>) -> Fake {
        Fake {
            datasets,
            ..Fake::default()
        }
    }

    fn get(&self, get: &DatasetGet) -> Answer<Dataset> {
        let mut answer = Answer::default();
        let mut roots = get.roots.clone();
        if roots.is_empty() {
            roots.extend(self.datasets.first().map(|d| d.name.clone()));
        }
        for root in roots {
            if !self.datasets.iter().any(|d| d.name == root) {
                let error = ApiError::no_such_dataset(&root);
                answer.failed.push((root, error));
                continue;
            }
            for d in &self.datasets {
                let Some(rest) = d.name.strip_prefix(root.as_str()) else {
                    continue;
                };
                if !rest.is_empty() && !rest.starts_with(['/', '@', '#']) {
                    continue;
                }
                let depth = rest.matches(['/', '@', '#']).count();
                if get.depth.is_some_and(|max| depth > max as usize) {
                    continue;
                }
                if !get.kinds.contains(&d.kind) {
                    continue;
                }
                let mut d = d.clone();
                if let Select::These(list) = &get.props {
                    d.props = list
                        .iter()
                        .map(|n| {
                            let have = d.props.iter().find(|p| p.name == *n);
                            have.cloned().unwrap_or(Prop {
                                name: n.clone(),
                                ..Prop::default()
                            })
                        })
                        .collect();
                }
                answer.found.push(d);
            }
        }
        answer
    }
}

impl Backend for Fake {
    fn ask(
        &mut self,
        request: &Request,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError> {
        self.seen.push(request.clone());
        if let Some(e) = &self.refuse {
            return Err(e.clone());
        }
        if let Some(a) = self.first.pop_front() {
            return Ok(a);
        }
        if let Some(a) = &self.answer {
            return Ok(a.clone());
        }
        Ok(match request {
            Request::DatasetGet(get) => Reply::Datasets(self.get(get)),
            Request::DatasetCreate(_) => Reply::Created(Created::default()),
            Request::DatasetDestroy(_) => Reply::Destroyed(Destroyed::default()),
            _ => Reply::Done,
        })
    }

    fn running(&mut self) -> bool {
        true
    }
}

/// Runs `zfs LINE` (split at blanks): exit status, stdout, stderr.
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
        line: cli::run::command_line("zfs", &args),
    };
    let status = cli::run::main_with(&cli::zfs_table::ZFS, &args, &mut cx, crate::run).unwrap();
    let text = |b| String::from_utf8(b).unwrap();
    (status, text(out), text(err))
}

/// A pool with children, snapshots and a bookmark, in the order the daemon walks it.
pub fn tree() -> Vec<Dataset> {
    let make = |name: &str, kind, createtxg, used: u64, refer: u64, mountpoint: &str| Dataset {
        name: name.into(),
        kind,
        createtxg,
        guid: createtxg,
        props: vec![
            Prop::new("used", used, Source::None),
            Prop::new("available", 832u64 << 20, Source::None),
            Prop::new("referenced", refer, Source::None),
            Prop {
                name: "mountpoint".into(),
                value: if mountpoint == "-" {
                    Value::None
                } else {
                    mountpoint.into()
                },
                source: Source::Default,
                received: None,
            },
            Prop::new("com.x:y", "hello", Source::Inherited("tank".into())),
        ],
    };
    use DatasetKind::*;
    let mut root = make("tank", Filesystem, 1, 132 << 10, 24 << 10, "/tank");
    root.props.pop();
    root.props.extend([
        Prop::new("com.x:y", "hello", Source::Local),
        Prop::new("compression", "lz4", Source::Local),
        Prop::new("creation", 1_795_180_045u64, Source::None),
    ]);
    vec![
        root,
        make("tank/a-c", Volume, 5, 1536, 0, "-"),
        make("tank/a", Filesystem, 4, 1536, 0, "/tank/a"),
        make("tank/a@1", Snapshot, 9, 0, 0, "-"),
        make("tank/a@2", Snapshot, 8, 0, 0, "-"),
        make("tank/a#m", Bookmark, 7, 0, 0, "-"),
        make("tank/a/b", Filesystem, 6, 1536, 0, "none"),
    ]
}
