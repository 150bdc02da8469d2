//! A settings file that somebody wrote, or that a disk damaged.

use holdfast::settings::{Settings, SettingsError};
use std::path::Path;

/// Settings are read or refused with a place in the file; what was read survives being written, and any reload.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("holdfast.toml");
    match Settings::parse(text, path) {
        Ok(settings) => {
            // Whether they go together is another question; asking must not panic.
            if let Err(error) = settings.check() {
                assert!(matches!(error, SettingsError::Conflict { .. }), "{error}");
            }
            let written = toml::to_string(&settings).expect("settings are written");
            assert_eq!(Settings::parse(&written, path).expect("and read again"), settings);
            let reload = Settings::default().reload(&settings);
            let again = reload.settings.reload(&settings);
            assert!(again.applied.is_empty(), "a second reload applies {:?} again", again.applied);
            assert_eq!(again.needs_restart, reload.needs_restart);
        }
        Err(SettingsError::Refused { line, column, problem, .. }) => {
            assert!((1..=text.matches('\n').count() + 1).contains(&line), "line {line}");
            let length = text.split('\n').nth(line - 1).map_or(0, |line| line.chars().count());
            assert!((1..=length + 1).contains(&column), "column {column} of {length}");
            assert!(!problem.is_empty());
        }
        Err(other) => panic!("{other}"),
    }
}
