//! Finding the programs that rows run. `tools/setup.sh bench` installs them.

use testkit::installed::tool;
pub use testkit::installed::Tool;

pub const BONNIE: Tool = tool("bonnie++", "bonnie++");
pub const FIO: Tool = tool("fio", "fio");
pub const GIT: Tool = tool("git", "git");
pub const TAR: Tool = tool("tar", "tar");
pub const RM: Tool = tool("rm", "coreutils");
pub const BASH: Tool = tool("bash", "bash");
pub const SQLITE: Tool = tool("sqlite3", "sqlite3");
pub const PGBENCH: Tool = tool("pgbench", "postgresql");
pub const POSTGRES: Tool = tool("postgres", "postgresql");
pub const INITDB: Tool = tool("initdb", "postgresql");
pub const APACHE: Tool = tool("apache2", "apache2-bin");
pub const AB: Tool = tool("ab", "apache2-utils");
pub const DBENCH: Tool = tool("dbench", "dbench");
pub const SETPRIV: Tool = tool("setpriv", "util-linux");
