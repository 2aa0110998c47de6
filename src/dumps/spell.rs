//! When a condition has held for long enough.

/// In how many seconds in a row it must hold. As many pass before the past is written, so that it has more than the
/// beginning.
const SECONDS: u32 = 5;

/// The seconds in which a condition has held, as it is looked at once a second.
#[derive(Debug, Default)]
pub struct Spell {
    seconds: u32,
}

impl Spell {
    /// Takes whether the condition holds in this second. Returns whether it is time to write; then it begins anew.
    pub fn second(&mut self, holds: bool) -> bool {
        self.seconds = if holds || self.is_certain() { self.seconds + 1 } else { 0 };
        let is_over = self.seconds == 2 * SECONDS;
        if is_over {
            self.seconds = 0;
        }
        is_over
    }

    /// Whether the condition held in the last second, or has held for long enough.
    pub fn has_begun(&self) -> bool {
        self.seconds > 0
    }

    /// Whether it has held for long enough, so that whatever follows no longer matters.
    pub fn is_certain(&self) -> bool {
        self.seconds >= SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns in which seconds it is time to write, if the condition holds in those marked with `x`.
    fn times(seconds: &str) -> Vec<usize> {
        let mut spell = Spell::default();
        let all = seconds.chars().enumerate();
        all.filter(|(_, second)| spell.second(*second == 'x')).map(|(place, _)| 1 + place).collect()
    }

    #[test]
    fn five_seconds_in_a_row_are_waited_for_and_five_more() {
        assert_eq!(times("..xxxxx....."), [12]);
        assert_eq!(times("xxxx.xxxx.xxxxx....."), [20]);
        assert_eq!(times("xxxx................"), [0; 0]);
        assert_eq!(times("xxxxxxxxxxxxxxxxxxxxxxxx"), [10, 20], "it begins anew");
    }

    #[test]
    fn it_is_certain_after_five() {
        let mut spell = Spell::default();
        assert!(!spell.has_begun());
        (0..4).for_each(|_| assert!(!spell.second(true)));
        assert!(spell.has_begun() && !spell.is_certain());
        spell.second(true);
        spell.second(false);
        assert!(spell.has_begun() && spell.is_certain());
    }
}
