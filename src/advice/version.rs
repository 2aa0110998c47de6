//! Versions of servers, in their order.

use serde::Deserialize;

/// A version such as `8.0.31` or `11.4.5-MariaDB`, of which only the numbers count. `8.0` comes before `8.0.1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(from = "String")]
pub struct Version(Vec<u32>);

impl From<String> for Version {
    fn from(text: String) -> Version {
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
        Version(numbers.split('.').map_while(|number| number.parse().ok()).collect())
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
        let version = |text: &str| Version::from(text.to_owned());
        assert!(version("10.2") < version("10.2.11-MariaDB") && version("10.2.11-MariaDB") < version("10.11"));
        assert!(version("8.0.9") < version("8.0.31-0ubuntu1"));
        assert_eq!(version("8.0.31-commercial").to_string(), "8.0.31");
        assert_eq!(version("").to_string(), "");
    }
}
