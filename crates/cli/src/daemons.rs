//! The choice of the daemon that answers a request: the user's own, or root's.
//!
//! Root has one daemon, and so has whoever names one by [`path::SOCKET_VARIABLE`]. Other users see the pools
//! of two: their own, and the system's, which root's daemon has. A name is looked for in their own daemon first.

use crate::backend::Backend;
use api::{ApiError, Concerns, PoolGet, Progress, Reply, Request};
use base::Kind;
use control::client::{join, unexpected};
use control::{path, Client};
use disk::names::pool_of;
use std::borrow::Cow;
use std::os::fd::OwnedFd;

/// The daemons, connected to when first asked. That of the user is started if it must be.
#[derive(Default)]
pub struct Daemons {
    own: Option<Client>,
    /// Outer `None`: not looked for yet.
    system: Option<Option<Client>>,
}

/// What each of the two is asked.
struct Shares<'a> {
    own: Option<Cow<'a, Request>>,
    system: Option<Cow<'a, Request>>,
}

impl<'a> Shares<'a> {
    fn own(request: &'a Request) -> Shares<'a> {
        Shares {
            own: Some(Cow::Borrowed(request)),
            system: None,
        }
    }

    fn system(request: &'a Request) -> Shares<'a> {
        Shares {
            own: None,
            system: Some(Cow::Borrowed(request)),
        }
    }
}

fn pools(client: &mut Client) -> Result<Vec<String>, ApiError> {
    match client.call(&Request::PoolGet(PoolGet::default()))? {
        Reply::Pools(all) => Ok(all.found.into_iter().map(|p| p.name).collect()),
        other => Err(unexpected(&other)),
    }
}

fn has_mounted(client: &mut Client, directory: &str) -> Result<bool, ApiError> {
    match client.call(&Request::MountList {})? {
        Reply::Mounts(all) => Ok(all.iter().any(|m| m.mountpoint == directory)),
        other => Err(unexpected(&other)),
    }
}

/// Who is asked what, if `own` and `system` are the pools of the two.
fn split<'a>(
    request: &'a Request,
    own: &[String],
    system: &[String],
) -> Result<Shares<'a>, ApiError> {
    match request.concerns() {
        Concerns::EveryPool => {
            let others = system.iter().filter(|p| !own.contains(p)).cloned();
            let others: Vec<String> = others.collect();
            let shown = match (others.is_empty(), request) {
                (true, _) => None,
                (false, Request::MountList {}) => Some(request.clone()),
                (false, _) => request.about(others),
            };
            Ok(match shown {
                None => Shares::own(request),
                shown => Shares {
                    own: (!own.is_empty()).then_some(Cow::Borrowed(request)),
                    system: shown.map(Cow::Owned),
                },
            })
        }
        Concerns::Names(names) => {
            let is_theirs = |name: &&str| {
                let pool = pool_of(name);
                let has = |list: &[String]| list.iter().any(|p| p == pool);
                !has(own) && has(system)
            };
            let (theirs, mine): (Vec<&str>, Vec<&str>) = names.iter().partition(|n| is_theirs(n));
            let (Some(one), Some(other)) = (mine.first(), theirs.first()) else {
                return Ok(match theirs.is_empty() {
                    true => Shares::own(request),
                    false => Shares::system(request),
                });
            };
            let part = |names: &[&str]| {
                let names = names.iter().map(|n| n.to_string()).collect();
                request.about(names).map(Cow::Owned)
            };
            match (part(&mine), part(&theirs)) {
                (Some(mine), Some(theirs)) => Ok(Shares {
                    own: Some(mine),
                    system: Some(theirs),
                }),
                _ => Err(ApiError::sentence(
                    Kind::Invalid,
                    format!("'{other}' is in a pool of the system's daemon, '{one}' is not"),
                )
                .hint("Give one command for each of the two daemons.")),
            }
        }
        _ => Ok(Shares::own(request)),
    }
}

impl Daemons {
    fn own(&mut self) -> Result<&mut Client, ApiError> {
        let client = match self.own.take() {
            Some(client) => client,
            None => Client::connect()?,
        };
        Ok(self.own.insert(client))
    }

    /// Root's daemon, if it is another one than that of the user and runs.
    fn system(&mut self) -> Option<&mut Client> {
        let look = || {
            let socket = path::system_socket()?;
            // One that cannot be reached has nothing to say.
            Client::connect_at(&socket).ok().flatten()
        };
        self.system.get_or_insert_with(look).as_mut()
    }

    fn shares<'a>(&mut self, request: &'a Request) -> Result<Shares<'a>, ApiError> {
        let concerns = request.concerns();
        if concerns == Concerns::Daemon || self.system().is_none() {
            return Ok(Shares::own(request));
        }
        if self.own.is_none() {
            self.own = Client::connect_for_its_pools()?;
        }
        let own = match &mut self.own {
            Some(own) => pools(own)?,
            None => Vec::new(),
        };
        let Some(system) = self.system() else {
            return Ok(Shares::own(request));
        };
        match concerns {
            Concerns::Anything | Concerns::Token => Ok(match own.is_empty() {
                true => Shares::system(request),
                false => Shares::own(request),
            }),
            Concerns::MountPoint(directory) => Ok(match has_mounted(system, directory)? {
                true => Shares::system(request),
                false => Shares::own(request),
            }),
            _ => split(request, &own, &pools(system)?),
        }
    }

    /// Asks each of the two what it is to be asked.
    fn each(
        &mut self,
        request: &Request,
        ask: &mut dyn FnMut(&mut Client, &Request) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let shares = self.shares(request)?;
        if let Some(request) = &shares.own {
            ask(self.own()?, request)?;
        }
        match (&shares.system, self.system()) {
            (Some(request), Some(client)) => ask(client, request),
            _ => Ok(()),
        }
    }

    fn together(
        &mut self,
        request: &Request,
        attach: &mut dyn FnMut(OwnedFd),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError> {
        let mut so_far = None;
        self.each(request, &mut |client, request| {
            let reply = client.call_streaming(request, attach, progress)?;
            so_far = Some(join(so_far.take(), reply));
            Ok(())
        })?;
        so_far.ok_or_else(|| Kind::NoDevice.into())
    }
}

impl Backend for Daemons {
    fn ask(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError> {
        self.together(request, &mut drop, progress)
    }

    fn ask_streaming(
        &mut self,
        request: &Request,
        attach: &mut dyn FnMut(OwnedFd),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError> {
        self.together(request, attach, progress)
    }

    fn ask_in_parts(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(Reply),
    ) -> Result<(), ApiError> {
        self.each(request, &mut |client, request| {
            client.call_in_parts(request, take)
        })
    }

    fn running(&mut self) -> bool {
        if self.own.is_none() {
            self.own = Client::connect_running().ok().flatten();
        }
        self.own.is_some() || self.system().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::DatasetGet;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| n.to_string()).collect()
    }

    fn roots(request: Option<Cow<'_, Request>>) -> Option<Vec<String>> {
        match request?.into_owned() {
            Request::DatasetGet(get) => Some(get.roots),
            other => panic!("{other:?}"),
        }
    }

    /// Whose daemon is asked for which names.
    fn asked(names: &[&str], own: &[&str]) -> (Option<Vec<String>>, Option<Vec<String>>) {
        let request = Request::DatasetGet(DatasetGet {
            roots: list(names),
            ..DatasetGet::default()
        });
        let shares = split(&request, &list(own), &list(&["both", "sys"])).unwrap();
        (roots(shares.own), roots(shares.system))
    }

    #[test]
    fn each_is_asked_about_its_pools() {
        let some = |names: &[&str]| Some(list(names));
        assert_eq!(asked(&["sys/a@b"], &["mine"]), (None, some(&["sys/a@b"])));
        assert_eq!(asked(&["mine/a"], &["mine"]), (some(&["mine/a"]), None));
        assert_eq!(asked(&["neither"], &["mine"]), (some(&["neither"]), None));
        assert_eq!(asked(&["both"], &["both"]), (some(&["both"]), None));
        assert_eq!(
            asked(&["sys", "mine"], &["mine"]),
            (some(&["mine"]), some(&["sys"]))
        );
        assert_eq!(asked(&[], &["both"]), (some(&[]), some(&["sys"])));
        assert_eq!(asked(&[], &[]), (None, some(&["both", "sys"])));
        assert_eq!(asked(&[], &["both", "sys"]), (some(&[]), None));
    }

    #[test]
    fn a_change_is_made_by_one_of_them() {
        let request = Request::SnapshotCreate(api::SnapshotCreate {
            names: list(&["mine@a", "sys@a"]),
            ..Default::default()
        });
        let refused = split(&request, &list(&["mine"]), &list(&["sys"]));
        let Err(e) = refused else { panic!("taken") };
        let want = "'sys@a' is in a pool of the system's daemon, 'mine@a' is not";
        assert_eq!(e.sentence_for("", ""), want);
    }
}
