//! Checks the password of a request, by bcrypt.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Instant;

use axum::http::header::AUTHORIZATION;
use axum::http::HeaderMap;
use base64::prelude::{Engine, BASE64_STANDARD};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::export::connections::Network;

/// The most that a hash may cost: each step doubles the time of a check, and this one takes seconds.
pub(super) const MOST_COST: u32 = 15;

/// The most passwords whose check is remembered.
const MOST_KNOWN: usize = 64;

/// How many times as long as the check of a wrong password its client has to wait for the next one: with this, wrong
/// passwords from one network take a tenth of a CPU.
const PAUSE: u32 = 9;

/// The users, and the hash of each one's password.
#[derive(Default)]
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// Chooses the hash that a name which nobody has is checked against.
    chooser: RandomState,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_set().entries(self.hashes.keys()).finish()
    }
}

impl Users {
    pub fn new(hashes: BTreeMap<String, String>) -> Users {
        Users { hashes, chooser: RandomState::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns the hash to check a user's password against, and whether there is such a user. Without one it is the
    /// hash of somebody else, always the same for a name, so that the time of a check does not tell who exists.
    fn hash_for(&self, name: &[u8]) -> Option<(&str, bool)> {
        if let Some(hash) = std::str::from_utf8(name).ok().and_then(|name| self.hashes.get(name)) {
            return Some((hash, true));
        }
        let number = self.chooser.hash_one(name) as usize % self.hashes.len().max(1);
        self.hashes.values().nth(number).map(|hash| (hash.as_str(), false))
    }
}

/// A name and a password that a client sent.
struct Credentials {
    text: Vec<u8>,
    colon: usize,
}

impl Credentials {
    /// Returns what a request has in its header, if that is readable.
    fn of(headers: &HeaderMap) -> Option<Credentials> {
        let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, encoded) = header.split_once(' ')?;
        let text = BASE64_STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        let colon = text.iter().position(|byte| *byte == b':')?;
        Some(Credentials { text, colon })
    }

    fn name(&self) -> &[u8] {
        &self.text[..self.colon]
    }

    fn password(&self) -> &[u8] {
        &self.text[self.colon + 1..]
    }
}

/// Lets each network have one password checked at a time, so that wrong ones of one do not hold up the others'.
#[derive(Default)]
struct Queues(Mutex<HashMap<Network, Arc<Semaphore>>>);

impl Queues {
    /// Waits until it is a network's turn.
    async fn turn(&self, from: Network) -> Option<OwnedSemaphorePermit> {
        let queue = {
            let mut queues = self.0.lock();
            // Who waits or pauses has a share in his queue.
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
            Arc::clone(queues.entry(from).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        queue.acquire_owned().await.ok()
    }
}

/// Checks passwords, one at a time, and remembers those that were right.
pub(super) struct Passwords {
    /// What is remembered is hashed with this, so that it tells nothing of a password.
    secret: [u64; 4],
    known: Mutex<HashSet<[u8; 32]>>,
    turn: Arc<Semaphore>,
    queues: Queues,
}

impl Passwords {
    pub fn new() -> Passwords {
        let random = |number| RandomState::new().hash_one(number);
        let turn = Arc::new(Semaphore::new(1));
        Passwords { secret: [0, 1, 2, 3].map(random), known: Mutex::default(), turn, queues: Queues::default() }
    }

    /// Returns whether a request may be answered. The check takes the time of a hash, on a thread that may block.
    pub async fn admit(&self, users: &Users, headers: &HeaderMap, from: Network) -> bool {
        if users.is_empty() {
            return true;
        }
        let Some(sent) = Credentials::of(headers) else { return false };
        let Some((hash, exists)) = users.hash_for(sent.name()) else { return false };
        let fingerprint = self.fingerprint(&sent, hash);
        let is_known = || exists && self.known.lock().contains(&fingerprint);
        if is_known() {
            return true;
        }
        let Some(own_turn) = self.queues.turn(from).await else { return false };
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return false };
        // Another request may have had the same password meanwhile.
        if is_known() {
            return true;
        }
        let hash = hash.to_owned();
        // The permits move into the closure: a check goes on after a client hangs up, and the next must wait for it.
        let check = spawn_blocking(move || {
            let began = Instant::now();
            let is_right = bcrypt::verify(sent.password(), &hash).unwrap_or(false) && exists;
            drop(turn);
            if !is_right {
                Handle::current().spawn(pause(began, own_turn));
            }
            is_right
        });
        let is_right = check.await.unwrap_or(false);
        if is_right {
            self.remember(fingerprint);
        }
        is_right
    }

    /// Returns a value that only these credentials have, as long as the user's hash is this one.
    fn fingerprint(&self, sent: &Credentials, hash: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        self.secret.iter().for_each(|part| digest.update(part.to_ne_bytes()));
        for part in [hash.as_bytes(), &sent.text] {
            digest.update(part.len().to_ne_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn remember(&self, fingerprint: [u8; 32]) {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(fingerprint);
    }
}

/// Keeps a client's turn for a while after the check of a wrong password, which began then.
async fn pause(began: Instant, own_turn: OwnedSemaphorePermit) {
    sleep(PAUSE * began.elapsed()).await;
    drop(own_turn);
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;

    /// The cheapest hash there is.
    const COST: u32 = 4;

    fn network(number: u8) -> Network {
        IpAddr::from([192, 0, 2, number]).into()
    }

    fn here() -> Network {
        network(1)
    }

    fn users(list: &[(&str, &str, u32)]) -> Users {
        let hash =
            |(name, password, cost): &(&str, &str, u32)| ((*name).to_owned(), bcrypt::hash(*password, *cost).unwrap());
        Users::new(list.iter().map(hash).collect())
    }

    fn header(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, text.parse().unwrap())])
    }

    fn basic(text: &str) -> HeaderMap {
        header(&format!("Basic {}", BASE64_STANDARD.encode(text)))
    }

    #[tokio::test]
    async fn only_the_right_password_is_admitted() {
        let users = users(&[("alice", "one:two", COST), ("bob", "", COST), ("ä", "ö", COST)]);
        let passwords = Passwords::new();
        for right in ["alice:one:two", "alice:one:two", "bob:", "ä:ö"] {
            assert!(passwords.admit(&users, &basic(right), here()).await, "{right}");
        }
        for wrong in ["alice:one", "alice:", "bob:one:two", "carol:one:two", ":", "", "alice", "Alice:one:two"] {
            assert!(!passwords.admit(&users, &basic(wrong), here()).await, "{wrong}");
        }
        let right = BASE64_STANDARD.encode("alice:one:two");
        assert!(passwords.admit(&users, &header(&format!("bAsIc  {right}")), here()).await);
        for wrong in [format!("Bearer {right}"), right.clone(), "Basic".to_owned(), "Basic ===".to_owned()] {
            assert!(!passwords.admit(&users, &header(&wrong), here()).await, "{wrong}");
        }
        assert!(!passwords.admit(&users, &HeaderMap::new(), here()).await);
        assert!(passwords.admit(&Users::default(), &HeaderMap::new(), here()).await, "nobody has a password");
    }

    #[tokio::test]
    async fn a_right_password_is_remembered_until_its_hash_changes() {
        let old = users(&[("alice", "old", 10)]);
        let passwords = Passwords::new();
        assert!(passwords.admit(&old, &basic("alice:old"), here()).await);
        let began = Instant::now();
        for _ in 0..100 {
            assert!(passwords.admit(&old, &basic("alice:old"), here()).await);
        }
        // A hundred checks would take several seconds.
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
        assert!(!passwords.admit(&users(&[("alice", "new", COST)]), &basic("alice:old"), here()).await);
        assert!(!passwords.admit(&users(&[("bob", "old", COST)]), &basic("alice:old"), here()).await);
    }

    #[tokio::test]
    async fn wrong_passwords_and_many_users_take_no_memory() {
        let names: Vec<String> = (0..MOST_KNOWN + 9).map(|number| format!("user{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), "x", COST)).collect();
        let (users, passwords) = (users(&all), Passwords::new());
        for name in &names {
            assert!(!passwords.admit(&users, &basic(&format!("{name}:wrong")), here()).await);
        }
        assert!(passwords.known.lock().is_empty());
        for name in &names {
            assert!(passwords.admit(&users, &basic(&format!("{name}:x")), here()).await);
        }
        assert!(passwords.known.lock().len() <= MOST_KNOWN);
    }

    /// Names that nobody has are checked against a hash as well, and each against the same one every time.
    #[test]
    fn unknown_names_take_as_long_as_known_ones() {
        let users = users(&[("alice", "x", COST), ("bob", "y", COST + 1)]);
        let hash_of = |name: &str| users.hash_for(name.as_bytes()).unwrap();
        assert!(hash_of("alice").1 && hash_of("bob").1);
        for name in ["carol", "", "alic", "bob "] {
            assert!(!hash_of(name).1 && hash_of(name) == hash_of(name));
            assert!(users.hashes.values().any(|hash| hash == hash_of(name).0));
        }
        let costs: HashSet<&str> = (0..64).map(|number| hash_of(&number.to_string()).0).collect();
        assert_eq!(costs.len(), 2, "unknown names have the same mixture of costs as known ones");
        assert!(users.hash_for(&[0xff]).is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_password_is_checked_at_a_time() {
        let (users, passwords) = (Arc::new(users(&[("alice", "x", 8)])), Arc::new(Passwords::new()));
        let held = Arc::clone(&passwords.turn).acquire_owned().await.unwrap();
        let check = |text: &'static str| {
            let (users, passwords) = (Arc::clone(&users), Arc::clone(&passwords));
            tokio::spawn(async move { passwords.admit(&users, &basic(text), here()).await })
        };
        let waiting = [check("alice:x"), check("alice:y"), check("alice:x")];
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(waiting.iter().all(|check| !check.is_finished()));
        drop(held);
        let [first, second, third] = waiting;
        assert!(first.await.unwrap() && !second.await.unwrap() && third.await.unwrap());
    }

    /// Wrong passwords of one network take a tenth of the time, and do not hold up another one's.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn guessing_is_slow_and_holds_up_nobody_else() {
        let (users, passwords) = (Arc::new(users(&[("alice", "x", 8)])), Arc::new(Passwords::new()));
        // The shortest of some: another process may have had the CPU.
        let mut one = Duration::MAX;
        for number in 10..20 {
            let began = Instant::now();
            assert!(!passwords.admit(&users, &basic("alice:first"), network(number)).await);
            one = one.min(began.elapsed());
        }
        let guess = |number: usize| {
            let (users, passwords) = (Arc::clone(&users), Arc::clone(&passwords));
            tokio::spawn(async move { passwords.admit(&users, &basic(&format!("alice:{number}")), here()).await })
        };
        let guesses: Vec<_> = (0..20).map(guess).collect();
        let asked = Instant::now();
        assert!(passwords.admit(&users, &basic("alice:x"), network(2)).await);
        assert!(asked.elapsed() < 10 * one, "{:?}, a check takes {one:?}", asked.elapsed());
        // A known password needs no check.
        assert!(passwords.admit(&users, &basic("alice:x"), here()).await);
        tokio::time::sleep(25 * one).await;
        let checked = guesses.iter().filter(|guess| guess.is_finished()).count();
        assert!((1..=10).contains(&checked), "{checked} guesses");
        guesses.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn networks_that_do_not_ask_take_no_memory() {
        let (users, passwords) = (users(&[("alice", "x", COST)]), Passwords::new());
        for number in 0..=255 {
            assert!(passwords.admit(&users, &basic("alice:x"), network(number)).await);
            passwords.known.lock().clear();
        }
        assert!(passwords.queues.0.lock().len() <= 2, "{}", passwords.queues.0.lock().len());
    }
}
