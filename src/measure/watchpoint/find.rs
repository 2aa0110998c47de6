//! Chooses the latch to watch: the one of a given name that most threads wait for.

use std::collections::{BTreeMap, HashMap};

use crate::measure::latch::WaitedFor;

/// The latch that the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one with this event name.
    Name(String),
    /// The only one whose event name equals or contains this.
    Part(String),
}

/// Latches that threads were seen waiting for, by event name and address.
#[derive(Debug, Default)]
pub struct Sightings(BTreeMap<String, HashMap<u64, Sighting>>);

#[derive(Debug)]
struct Sighting {
    latch: WaitedFor,
    /// The number of waiting threads, summed over all observations.
    waiters: u64,
    /// How often it was the last latch that a thread had waited for.
    last: u64,
}

/// The most waited-for latch of a name.
#[derive(Debug, PartialEq, Eq)]
pub struct Hottest<'a> {
    /// The latch.
    pub latch: &'a WaitedFor,
    /// The number of latches of this name that were seen.
    pub instances: usize,
    /// The waiters that were seen for latches of this name: those for this latch, and all.
    pub waiters: (u64, u64),
}

impl Sightings {
    /// Adds the latches that threads are waiting for now.
    pub fn add_waiters(&mut self, now: Vec<WaitedFor>) {
        now.into_iter().for_each(|latch| self.of(latch).waiters += 1);
    }

    /// Adds the latches for which waits have ended since the last observation.
    pub fn add_last(&mut self, last: Vec<WaitedFor>) {
        last.into_iter().for_each(|latch| self.of(latch).last += 1);
    }

    fn of(&mut self, latch: WaitedFor) -> &mut Sighting {
        let instances = self.0.entry(latch.name.event.clone()).or_default();
        instances.entry(latch.address).or_insert_with(|| Sighting { latch, waiters: 0, last: 0 })
    }

    /// Iterates over the event names that were seen.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the only event name that the user can mean.
    ///
    /// # Errors
    /// Fails with the names that the user can mean, if there is not exactly one.
    pub fn meant(&self, wanted: &Wanted) -> Result<&str, Vec<&str>> {
        let matching = |is: &dyn Fn(&str) -> bool| self.names().filter(|name| is(name)).collect::<Vec<_>>();
        let found = match wanted {
            Wanted::Name(wanted) => matching(&|name| name == wanted),
            Wanted::Part(part) => {
                let is_last = |name: &str| name.rsplit(['/', ':']).next() == Some(part);
                let found = [matching(&|name| name == part), matching(&is_last), matching(&|name| name.contains(part))];
                found.into_iter().find(|names| !names.is_empty()).unwrap_or_default()
            }
        };
        match found[..] {
            [name] => Ok(name),
            _ => Err(found),
        }
    }

    /// Returns how many waiters were seen for latches of this name.
    pub fn waiters(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |instances| instances.values().map(|one| one.waiters).sum())
    }

    /// Returns the latch of this name that most threads waited for. Where waits are too short to observe waiters, the
    /// latch that was last waited for decides.
    pub fn hottest(&self, name: &str) -> Option<Hottest<'_>> {
        let instances = self.0.get(name)?;
        let most = instances.values().max_by_key(|one| (one.waiters, one.last, one.latch.address))?;
        let waiters = (most.waiters, self.waiters(name));
        Some(Hottest { latch: &most.latch, instances: instances.len(), waiters })
    }

    /// Returns the other observed latch that covers an address.
    pub fn at(&self, address: u64) -> Option<&WaitedFor> {
        let mut all = self.0.values().flat_map(HashMap::values).map(|one| &one.latch);
        all.find(|latch| (latch.address..latch.address.saturating_add(latch.bytes)).contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::LatchName;

    fn latch(event: &str, address: u64) -> WaitedFor {
        WaitedFor { name: LatchName::from_event(event).unwrap(), address, bytes: 0x30 }
    }

    fn part(wanted: &str) -> Wanted {
        Wanted::Part(wanted.to_owned())
    }

    const PAGE: &str = "wait/synch/mutex/innodb/lock_sys_page_mutex";
    const TABLE: &str = "wait/synch/mutex/innodb/lock_sys_table_mutex";
    const TRX: &str = "wait/synch/mutex/innodb/trx_mutex";
    const TRX_SYS: &str = "wait/synch/mutex/innodb/trx_sys_mutex";

    #[test]
    fn a_part_of_a_name_is_enough_if_no_other_has_it() {
        let mut seen = Sightings::default();
        seen.add_waiters([PAGE, TABLE, TRX, TRX_SYS].map(|name| latch(name, 1)).to_vec());
        assert_eq!(seen.meant(&part(TRX_SYS)), Ok(TRX_SYS));
        assert_eq!(seen.meant(&part("trx_mutex")), Ok(TRX));
        assert_eq!(seen.meant(&part("sys_pa")), Ok(PAGE));
        assert_eq!(seen.meant(&part("lock_sys")), Err(vec![PAGE, TABLE]));
        assert_eq!(seen.meant(&part("nothing")), Err(vec![]));
        assert_eq!(seen.meant(&Wanted::Name(TRX.to_owned())), Ok(TRX));
        assert_eq!(seen.meant(&Wanted::Name("trx_mutex".to_owned())), Err(vec![]), "another latch may be called so");
    }

    #[test]
    fn the_hottest_has_most_waiters() {
        let mut seen = Sightings::default();
        seen.add_waiters(vec![latch(PAGE, 0x100), latch(PAGE, 0x200), latch(PAGE, 0x200), latch(TRX, 0x300)]);
        let hottest = seen.hottest(PAGE).unwrap();
        assert_eq!((hottest.latch.address, hottest.instances, hottest.waiters), (0x200, 2, (2, 3)));
        assert_eq!(seen.hottest(TABLE), None);
        assert_eq!(seen.at(0x12f).map(|latch| latch.address), Some(0x100));
        assert_eq!(seen.at(0x130), None);
    }

    #[test]
    fn short_waits_are_told_by_what_was_waited_for_last() {
        let mut seen = Sightings::default();
        for address in [0x100, 0x200, 0x200] {
            seen.add_last(vec![latch(PAGE, address)]);
        }
        let hottest = seen.hottest(PAGE).unwrap();
        assert_eq!((hottest.latch.address, hottest.waiters), (0x200, (0, 0)));
    }
}
