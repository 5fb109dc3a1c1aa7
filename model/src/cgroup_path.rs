//! Where a control group is, below the cgroup root, the same in every hierarchy.

use std::{fmt, path::Path};
use thiserror::Error;

/// A path relative to a cgroup root: `kubepods/burstable/pod1234`. Never absolute, never empty in
/// the middle, never `..`, so joining it to a root cannot leave that root. The root itself is the
/// empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupPath(Box<str>);

/// Why a string is no cgroup path.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CgroupPathError {
    #[error("component {component:?} of a cgroup path leads elsewhere")]
    Escapes { component: String },
    /// No group has one in its name: the kernel refuses the end of a line, and a log would show another.
    #[error("cgroup path has the control character {character:?}")]
    Control { character: char },
    #[error("cgroup path is {length} bytes long, {max} are allowed")]
    TooLong { length: usize, max: usize },
}

/// `PATH_MAX` of Linux; the kernel refuses more.
const MAX_LENGTH: usize = 4096;

// === impl CgroupPath ===

impl CgroupPath {
    /// The root of a hierarchy.
    pub fn root() -> Self {
        Self::default()
    }

    /// Reads a path as the kubelet sends it in `cgroup_parent`: a leading slash and doubled
    /// slashes are of no meaning.
    ///
    /// # Errors
    ///
    /// When the text has more than 4,096 bytes, with the slashes of no meaning, or a control character, or
    /// one of its components is `.` or `..`.
    pub fn parse(text: &str) -> Result<Self, CgroupPathError> {
        Self::root().join(text)
    }

    /// This path and `child` below it.
    ///
    /// # Errors
    ///
    /// When both have more than 4,096 bytes, with the slash that comes between them and those of no meaning,
    /// or `child` has a control character, or one of its components is `.` or `..`.
    pub fn join(&self, child: &str) -> Result<Self, CgroupPathError> {
        let separator = usize::from(!self.is_root());
        let length = self.0.len() + separator + child.len();
        if length > MAX_LENGTH {
            return Err(CgroupPathError::TooLong {
                length,
                max: MAX_LENGTH,
            });
        }
        // Nearly all are of printable ASCII, which is told faster by bytes.
        let is_plain = child.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_plain && let Some(character) = child.chars().find(|it| it.is_control()) {
            return Err(CgroupPathError::Control { character });
        }
        let mut path = String::with_capacity(length);
        path.push_str(&self.0);
        for component in child.split('/').filter(|c| !c.is_empty()) {
            if component == "." || component == ".." {
                return Err(CgroupPathError::Escapes {
                    component: component.to_owned(),
                });
            }
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(component);
        }
        Ok(Self(path.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(&*self.0)
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory above, `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.rfind('/').unwrap_or(0);
        Some(Self(self.0[..end].into()))
    }

    /// The last component, `None` for the root.
    pub fn file_name(&self) -> Option<&str> {
        self.components().next_back()
    }

    /// The components from the root down.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|c| !c.is_empty())
    }

    /// Whether systemd has made it for what somebody else starts: a container, where systemd manages groups.
    pub fn is_scope(&self) -> bool {
        self.file_name()
            .is_some_and(|name| name.ends_with(".scope"))
    }

    /// How far below the root: 0 for the root.
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// Whether this is `ancestor` or lies below it.
    pub fn is_under(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || self
                .0
                .strip_prefix(&*ancestor.0)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_at_the_front_and_doubled_mean_nothing() {
        let path = CgroupPath::parse("//kubepods//burstable/pod1/").unwrap();
        assert_eq!(path.as_str(), "kubepods/burstable/pod1");
        assert_eq!(path.to_string(), "/kubepods/burstable/pod1");
        assert_eq!(path.depth(), 3);
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        for text in ["..", "a/../b", "/a/..", "./a", "a/."] {
            assert!(
                matches!(
                    CgroupPath::parse(text),
                    Err(CgroupPathError::Escapes { .. })
                ),
                "{text}"
            );
        }
        for character in ['\0', '\n', '\u{1b}', '\u{85}'] {
            let parsed = CgroupPath::parse(&format!("a{character}b"));
            assert_eq!(parsed, Err(CgroupPathError::Control { character }));
        }
        assert!(CgroupPath::root().join("..").is_err());
        assert_eq!(CgroupPath::parse("/...").unwrap().as_str(), "...");
    }

    #[test]
    fn a_sibling_with_the_same_beginning_is_not_below() {
        let parent = CgroupPath::parse("kubepods/pod1").unwrap();
        assert!(
            CgroupPath::parse("kubepods/pod1/c")
                .unwrap()
                .is_under(&parent)
        );
        assert!(parent.is_under(&parent));
        assert!(parent.is_under(&CgroupPath::root()));
        assert!(
            !CgroupPath::parse("kubepods/pod12")
                .unwrap()
                .is_under(&parent)
        );
    }

    #[test]
    fn the_parent_of_a_top_directory_is_the_root() {
        let top = CgroupPath::parse("kubepods").unwrap();
        assert_eq!(top.parent(), Some(CgroupPath::root()));
        assert_eq!(CgroupPath::root().parent(), None);
        assert_eq!(top.file_name(), Some("kubepods"));
    }
}
