//! Reading many blocks: those that are not cached in one batch; read-ahead.

use super::Zio;
use crate::cache::Key;
use crate::crypt::Crypt;
use crate::flight::{Boarding, Flight, Lead};
use crate::read_spec::{How, InUse, Lease, ReadSpec, Whole};
use crate::scope::Scope;
use crate::seam::{Looked, ReadOne};
use crate::syncing;
use base::{Block, Error, Result};
use disk::BlkPtr;
use std::sync::Arc;

impl Zio {
    /// Reads many blocks, those not cached in one batch. One result for each, in order; otherwise
    /// as [`Zio::read_with`]. With [`InUse::Unknown`] there is no batch.
    pub fn read_many(&self, bps: &[BlkPtr], spec: &ReadSpec) -> Vec<Result<Block>> {
        let lease = match spec.in_use {
            InUse::Now => self.lease(),
            InUse::Since(lease) => lease,
            InUse::Unknown => return bps.iter().map(|bp| self.read_with(bp, spec)).collect(),
        };
        let spec = &ReadSpec {
            in_use: InUse::Since(lease),
            ..*spec
        };
        let one = |i: usize| {
            let whole = match spec.whole.at(i) {
                true => Whole::All,
                false => Whole::None,
            };
            self.read_with(&bps[i], &ReadSpec { whole, ..*spec })
        };
        let mut out: Vec<Option<Result<Block>>> = Vec::with_capacity(bps.len());
        let mut missing: Vec<(usize, Option<Lead>)> = Vec::new();
        let mut followed: Vec<(usize, Arc<Flight>)> = Vec::new();
        for (i, bp) in bps.iter().enumerate() {
            if !self.is_plain(bp, spec.crypt) {
                // May wait for what somebody else reads, who may wait for what is led here.
                if missing.is_empty() {
                    out.push(Some(one(i)));
                } else {
                    out.push(None);
                }
                continue;
            }
            out.push(self.cached(bp, spec.whole.at(i), spec).map(Ok));
            if out[i].is_none() && syncing::here() {
                missing.push((i, None));
            } else if out[i].is_none() {
                match self.flights.board(Key::of(bp)) {
                    Boarding::Lead(l) => missing.push((i, Some(l))),
                    Boarding::Follow(f) => followed.push((i, f)),
                }
            }
        }
        self.read_missing(bps, lease, spec, &mut missing, &mut out);
        drop(missing);
        // Nothing is led any more.
        for (i, f) in followed {
            out[i] = f.wait().map(Ok);
        }
        for (i, r) in out.iter_mut().enumerate().filter(|(_, r)| r.is_none()) {
            *r = Some(one(i));
        }
        out.into_iter()
            .map(|r| r.unwrap_or_else(|| Err(Error::damaged("a read was lost"))))
            .collect()
    }

    /// The PSIZE bytes of each block as it is stored, verified, in one batch; one result for each, in order. Takes no
    /// key. The pointers must have been in use when `lease` was taken; holes and embedded blocks are not stored.
    ///
    /// # Errors
    /// [`base::Kind::Checksum`] if no copy verifies, [`base::Kind::Io`] if none can be read.
    pub fn read_raw_many(&self, bps: &[BlkPtr], lease: Lease) -> Vec<Result<Vec<u8>>> {
        let how = How::Used(lease);
        let mut out: Vec<Option<Result<Vec<u8>>>> = Vec::with_capacity(bps.len());
        let mut wanted = Vec::new();
        for (i, bp) in bps.iter().enumerate() {
            out.push(match bp.sanity(self.devices.vdevs()) {
                Err(e) => Some(Err(e)),
                Ok(()) if bp.is_hole() || bp.is_embedded() => {
                    Some(Err(Error::damaged(format!("not a stored block: {bp:?}"))))
                }
                Ok(()) => None,
            });
            if out[i].is_none() && !bp.is_gang() && self.unwritten(&bp.dva(0)).is_empty() {
                wanted.push((i, None));
            }
        }
        let got = self.look_at(bps, &wanted, false);
        for ((i, _), l) in wanted.into_iter().zip(got) {
            let bp = &bps[i];
            out[i] = Some(match l.data {
                Ok(raw) => {
                    if !l.wrong.is_empty() {
                        self.heal(bp, &l.wrong, &raw, how, false);
                    }
                    Ok(raw)
                }
                Err(e) => self.read_from(bp, 1, 0, how, (l.wrong, e)),
            });
        }
        let rest = out.into_iter().zip(bps);
        rest.map(|(r, bp)| r.unwrap_or_else(|| self.read_copies(bp, 0, how)))
            .collect()
    }

    /// Whether the block can be read in a batch with others.
    fn is_plain(&self, bp: &BlkPtr, crypt: &Crypt) -> bool {
        !bp.is_hole()
            && !bp.is_embedded()
            && !bp.is_gang()
            && (!bp.uses_crypt() || crypt.key().is_some())
            && bp.sanity(self.devices.vdevs()).is_ok()
            && self.unwritten(&bp.dva(0)).is_empty()
    }

    /// What the devices have of these blocks, by index, in one batch.
    /// `ahead`: nobody waits for them.
    fn look_at(
        &self,
        bps: &[BlkPtr],
        wanted: &[(usize, Option<Lead>)],
        ahead: bool,
    ) -> Vec<Looked> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let verifiers: Vec<_> = wanted
            .iter()
            .map(|(i, _)| self.verifier(&bps[*i]))
            .collect();
        let reqs: Vec<ReadOne> = wanted
            .iter()
            .zip(&verifiers)
            .map(|((i, _), v)| ReadOne {
                dva: bps[*i].dva(0),
                psize: bps[*i].psize(),
                birth: bps[*i].physical_birth(),
                verify: v,
            })
            .collect();
        let read = |reqs: &[ReadOne]| match ahead {
            true => self.devices.look_ahead(reqs),
            false => self.devices.look(reqs),
        };
        let Some(found) = self.second_look(&reqs) else {
            return read(&reqs);
        };
        let missing = reqs.iter().zip(&found).filter(|(_, f)| f.is_none());
        let missing: Vec<ReadOne> = missing.map(|(r, _)| *r).collect();
        let mut rest = match missing.is_empty() {
            true => Vec::new(),
            false => read(&missing),
        }
        .into_iter();
        let looked = |f: Option<Vec<u8>>| match f {
            Some(raw) => Looked {
                data: Ok(raw),
                wrong: Vec::new(),
            },
            None => rest.next().unwrap_or(Looked {
                data: Err(base::Kind::Io.into()),
                wrong: Vec::new(),
            }),
        };
        found.into_iter().map(looked).collect()
    }

    fn read_missing(
        &self,
        bps: &[BlkPtr],
        lease: Lease,
        spec: &ReadSpec,
        missing: &mut [(usize, Option<Lead>)],
        out: &mut [Option<Result<Block>>],
    ) {
        let how = How::Used(lease);
        let got = self.look_at(bps, missing, false);
        for ((i, lead), l) in missing.iter_mut().zip(got) {
            let (i, bp) = (*i, &bps[*i]);
            let raw = match l.data {
                Ok(raw) => {
                    if !l.wrong.is_empty() {
                        self.heal(bp, &l.wrong, &raw, how, false);
                    }
                    Ok(raw)
                }
                // Other copies, and the bookkeeping of failures.
                Err(e) => self.read_from(bp, 1, 0, how, (l.wrong, e)),
            };
            let r = raw.and_then(|raw| self.finish(bp, spec, raw, spec.whole.at(i)));
            if let (Some(lead), Ok(b)) = (lead.take(), &r) {
                lead.landed(b);
            }
            out[i] = Some(r);
        }
    }

    /// Read-ahead: brings blocks into the cache, those of [`ReadSpec::keep`]; others are not read. Errors
    /// are left to whoever reads the blocks later: nothing is repaired or counted. Returns how many
    /// blocks were neither cached nor being read.
    pub fn read_ahead(&self, bps: &[BlkPtr], spec: &ReadSpec) -> usize {
        // What nobody has asked for is not worth a write to a cache device.
        let spec = &ReadSpec {
            second: Scope::Nothing,
            ..*spec
        };
        let (crypt, keep) = (spec.crypt, spec.keep);
        let mut wanted: Vec<(usize, Option<Lead>)> = Vec::new();
        for (i, bp) in bps.iter().enumerate() {
            if keep.has(bp) && self.is_plain(bp, crypt) && !self.cache.has(bp) {
                if let Boarding::Lead(l) = self.flights.board(Key::of(bp)) {
                    wanted.push((i, Some(l)));
                }
            }
        }
        let (got, count) = (self.look_at(bps, &wanted, true), wanted.len());
        for ((i, lead), l) in wanted.into_iter().zip(got) {
            let Ok(raw) = l.data else { continue };
            if !l.wrong.is_empty() {
                continue;
            }
            let whole = spec.whole.at(i);
            if let (Some(lead), Ok(b)) = (lead, self.finish(&bps[i], spec, raw, whole)) {
                lead.landed(&b);
            }
        }
        count
    }
}
