//! What was found in a program that several servers run: it is searched once, and is in memory once.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Image;

/// What was found in each program, under the same conditions `K`. It is kept for as long as somebody uses it.
pub struct PerImage<K, T>(Mutex<Vec<Found<K, T>>>);

struct Found<K, T> {
    image: Weak<Image>,
    under: K,
    what: Weak<T>,
}

impl<K: PartialEq, T> Default for PerImage<K, T> {
    fn default() -> PerImage<K, T> {
        PerImage::new()
    }
}

impl<K: PartialEq, T> PerImage<K, T> {
    /// Creates one in which nothing was found yet.
    pub const fn new() -> PerImage<K, T> {
        PerImage(Mutex::new(Vec::new()))
    }

    /// Returns what `find` finds in this program, or what it has found before. Who asks meanwhile waits for it.
    pub fn of(&self, image: &Arc<Image>, under: K, find: impl FnOnce() -> T) -> Arc<T> {
        let mut all = self.0.lock();
        all.retain(|found| found.what.strong_count() > 0);
        let is_this = |found: &&Found<K, T>| std::ptr::eq(found.image.as_ptr(), &**image) && found.under == under;
        if let Some(what) = all.iter().find(is_this).and_then(|found| found.what.upgrade()) {
            return what;
        }
        let what = Arc::new(find());
        all.push(Found { image: Arc::downgrade(image), under, what: Arc::downgrade(&what) });
        what
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn own() -> Arc<Image> {
        Arc::new(Image::open(Path::new("/proc/self/exe")).expect("the test's own executable"))
    }

    #[test]
    fn a_program_is_searched_once_while_what_was_found_is_in_use() {
        let found = PerImage::new();
        let [image, other] = [own(), own()];
        let first = found.of(&image, 1, || "first");
        assert_eq!(*found.of(&image, 1, || "again"), "first");
        assert_eq!(*found.of(&image, 2, || "under other conditions"), "under other conditions");
        assert_eq!(*found.of(&other, 1, || "in another program"), "in another program");
        drop(first);
        assert_eq!(*found.of(&image, 1, || "again"), "again");
    }
}
