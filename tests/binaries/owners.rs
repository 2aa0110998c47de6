//! Where real builds' latches keep the thread that holds them.

use armtrace::discovery::{rw_lock_owner, RwLockOwner};
use armtrace::measure::latch::thread_id_offset;
use lab::binaries::{
    glibc_amd64, glibc_arm64, lab_image, libpthread_2_31, mariadb_10_1, mariadb_10_2, mariadb_amd64, mysql_amd64,
    mysql_arm64,
};

/// MySQL moved the members together between 8.0.12 and 8.0.31.
#[test]
fn the_code_shows_where_rw_locks_keep_their_writer() {
    let together = Some(RwLockOwner { writer: 0x10, belongs: 5 });
    for image in [mysql_amd64(), mysql_arm64(), lab_image("mysql-8.0.31")] {
        assert_eq!(rw_lock_owner(&image), together);
    }
    let apart = Some(RwLockOwner { writer: 0x28, belongs: 0x10 });
    for image in [lab_image("mysql-8.0.12"), lab_image("mysql-5.7")] {
        assert_eq!(rw_lock_owner(&image), apart);
    }
    // MariaDB's code does not show it, or has no such locks.
    for image in [mariadb_10_1(), mariadb_10_2(), mariadb_amd64()] {
        assert_eq!(rw_lock_owner(&image), None);
    }
}

/// The C library tells debuggers, on either architecture.
#[test]
fn the_c_library_says_where_a_thread_has_its_id() {
    assert_eq!(thread_id_offset(&glibc_amd64()), Some(0x2d0));
    assert_eq!(thread_id_offset(&glibc_arm64()), Some(0xd0));
    assert_eq!(thread_id_offset(&libpthread_2_31()), Some(0x2d0));
}
