//! Guarantees of a cache within one process: complete entries or none, eviction in order, detection of
//! damage, and no changes outside the directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use coremill_cache::{Entry, ErrorKind, Key, Options, Store};

const MEGABYTE: usize = 1 << 20;

fn key(number: usize) -> Key {
    Key::new([&b"test"[..], &number.to_le_bytes()])
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let root = directory.path().join("store");
    (directory, root)
}

fn open(root: &Path, limit: usize) -> Store {
    Store::open(root, &Options { limit: limit as u64, durable: false }).expect("opens")
}

/// An entry of a megabyte in two files.
fn put(store: &Store, number: usize) -> Entry {
    let make = |place: &Path| {
        fs::create_dir(place.join("weights"))?;
        fs::write(place.join("weights/weight.bin"), vec![number as u8; MEGABYTE - 10])?;
        fs::write(place.join("model.mil"), [number as u8; 10])
    };
    store.get_or_insert(&key(number), "model", &format!("number {number}"), make).expect("stored")
}

fn existing_entries(store: &Store, numbers: std::ops::Range<usize>) -> Vec<usize> {
    numbers
        .filter(|number| store.root().join("entries").join(key(*number).to_string()).exists())
        .collect()
}

#[test]
fn finds_stored_entries_after_reopening() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    assert!(store.get(&key(1)).expect("looked up").is_none());
    let entry = put(&store, 1);
    assert_eq!(entry.bytes(), MEGABYTE as u64);
    let again = open(&root, 10 * MEGABYTE);
    let found = again.get(&key(1)).expect("looked up").expect("found");
    assert_eq!(found.path(), entry.path());
    assert_eq!(fs::read(found.path().join("model.mil")).expect("read"), [1; 10]);
    let made = AtomicUsize::new(0);
    let make = |_: &Path| -> io::Result<()> {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    store.get_or_insert(&key(1), "model", "number 1", make).expect("found");
    assert_eq!(made.into_inner(), 0, "an existing entry must not be rebuilt");
    let listed = again.list().expect("listed");
    assert_eq!((listed.len(), &*listed[0].label, listed[0].uses), (1, "number 1", 3));
    assert_eq!(again.size().expect("known"), MEGABYTE as u64);
    let verified = again.verify().expect("verified");
    assert_eq!((verified.sound, verified.damaged.len()), (1, 0));
}

#[test]
fn failed_insert_leaves_no_files() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    let failing = |place: &Path| {
        fs::write(place.join("half"), "a half")?;
        Err(io::Error::other("the compiler gave up"))
    };
    let error = store.get_or_insert(&key(1), "model", "broken", failing).expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Make);
    assert_eq!(error.to_string(), "cannot create the entry `broken`: the compiler gave up");
    let full = |_: &Path| Err(io::Error::from(io::ErrorKind::StorageFull));
    let error = store.get_or_insert(&key(1), "model", "large", full).expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.hint().is_some_and(|hint| hint.contains("prune the cache")));
    let nothing = |_: &Path| io::Result::Ok(());
    let error = store.get_or_insert(&key(1), "model", "empty", nothing).expect_err("it fails");
    assert_eq!(error.to_string(), "nothing was written for the entry `empty`");
    assert!(store.get(&key(1)).expect("looked up").is_none());
    for directory in ["entries", "staging", "trash"] {
        let left = fs::read_dir(root.join(directory)).expect("read").count();
        assert_eq!(left, 0, "{directory} must be empty");
    }
    drop(put(&store, 1));
}

#[test]
fn evicts_least_recently_used_entry_first() {
    let (_directory, root) = scratch();
    let store = open(&root, 3 * MEGABYTE);
    (0..3).for_each(|number| drop(put(&store, number)));
    assert!(store.get(&key(0)).expect("looked up").is_some());
    drop(put(&store, 3));
    assert_eq!(existing_entries(&store, 0..4), [0, 2, 3]);
    // File times are ignored: the lock of entry 2 has a time in the far future.
    let future = SystemTime::now() + Duration::from_secs(1 << 30);
    {
        let name = key(2).to_string();
        let lock = File::options().write(true).open(root.join("locks").join(name + ".use"));
        lock.and_then(|lock| lock.set_modified(future)).expect("set");
    }
    drop(put(&store, 4));
    assert_eq!(existing_entries(&store, 0..5), [0, 3, 4]);
    assert_eq!(store.prune(MEGABYTE as u64).expect("pruned"), MEGABYTE as u64);
    assert_eq!(existing_entries(&store, 0..5), [4]);
    assert_eq!(store.purge().expect("purged"), 0);
    assert!(existing_entries(&store, 0..5).is_empty());
    assert_eq!(
        fs::read_dir(root.join("locks")).expect("read").count(),
        0,
        "no lock file must remain"
    );
}

#[test]
fn never_evicts_entries_in_use() {
    let (_directory, root) = scratch();
    let store = open(&root, 2 * MEGABYTE);
    let held = [put(&store, 0), put(&store, 1)];
    // A second store sees the same locks as a store in another process.
    let other = open(&root, 2 * MEGABYTE);
    // The entries in use do not exceed the limit, so one more entry is stored although it does.
    let third = put(&other, 2);
    let make = |place: &Path| fs::write(place.join("data"), "x");
    let error = other.get_or_insert(&key(3), "model", "m", make).expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(
        error.to_string().contains("3145728 bytes that are in use, but its limit is 2097152 bytes")
    );
    assert_eq!(other.purge().expect("purged"), 3 * MEGABYTE as u64);
    assert!(!other.remove(&key(0)).expect("tried"));
    for entry in held.iter().chain([&third]) {
        assert_eq!(fs::read(entry.path().join("model.mil")).expect("read").len(), 10);
    }
    drop(held);
    assert_eq!(other.prune(0).expect("pruned"), MEGABYTE as u64);
    drop(third);
    // An entry larger than the limit is kept if it is the only one.
    let large = |place: &Path| fs::write(place.join("data"), vec![0; 5 * MEGABYTE]);
    drop(store.get_or_insert(&key(9), "model", "large", large).expect("stored"));
    assert_eq!(store.size().expect("known"), 5 * MEGABYTE as u64);
    drop(put(&store, 1));
    assert_eq!(store.size().expect("known"), MEGABYTE as u64);
}

#[test]
fn rebuilds_damaged_entries() {
    let file = |root: &Path, name: &str| {
        root.join("entries").join(key(1).to_string()).join("content").join(name)
    };
    type Damage = (&'static str, Box<dyn Fn(&Path)>);
    let damages: [Damage; 6] = [
        (
            "cut",
            Box::new(move |root| {
                let file = File::options().write(true).open(file(root, "model.mil"));
                file.and_then(|file| file.set_len(3)).expect("cut");
            }),
        ),
        (
            "changed",
            Box::new(move |root| {
                fs::write(file(root, "model.mil"), "other byte").expect("written");
            }),
        ),
        (
            "removed",
            Box::new(move |root| {
                fs::remove_file(file(root, "weights/weight.bin")).expect("removed");
            }),
        ),
        (
            "added",
            Box::new(move |root| {
                fs::write(file(root, "weights/more.bin"), "more").expect("written");
            }),
        ),
        (
            "manifest",
            Box::new(|root| {
                let entry = root.join("entries").join(key(1).to_string());
                fs::write(entry.join("manifest.json"), "{").expect("written");
            }),
        ),
        (
            "emptied",
            Box::new(|root| {
                let entry = root.join("entries").join(key(1).to_string());
                fs::remove_dir_all(&entry).and_then(|()| fs::create_dir(&entry)).expect("emptied");
            }),
        ),
    ];
    for (name, damage) in damages {
        let (_directory, root) = scratch();
        let store = open(&root, 10 * MEGABYTE);
        drop(put(&store, 1));
        damage(&root);
        assert!(
            store.get(&key(1)).expect("looked up").is_none(),
            "{name}: the damaged entry was returned"
        );
        let entry = put(&store, 1);
        assert_eq!(fs::read(entry.path().join("model.mil")).expect("read"), [1; 10], "{name}");
        damage(&root);
        let verified = store.verify().expect("verified");
        assert_eq!(verified.damaged.len(), 1, "{name}");
        assert!(!verified.damaged[0].removed, "{name}: an entry in use was removed");
        // A request now returns an intact entry in addition to the damaged one.
        let again = put(&store, 1);
        assert_eq!(fs::read(again.path().join("model.mil")).expect("read"), [1; 10], "{name}");
    }
}

#[test]
fn verify_detects_corruption_with_unchanged_mtime() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    let path = put(&store, 1).path().join("model.mil");
    let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("known");
    fs::write(&path, "bit rotted").expect("written");
    let file = File::options().write(true).open(&path);
    file.and_then(|file| file.set_modified(modified)).expect("set");
    let verified = store.verify().expect("verified");
    assert_eq!(verified.damaged.len(), 1);
    assert_eq!(verified.damaged[0].reason, "`model.mil` differs from the written bytes");
    assert!(verified.damaged[0].removed);
    // A change of file times alone, as in a copy of the cache, is not damage.
    drop(put(&store, 2));
    let path = put(&store, 2).path().join("model.mil");
    fs::write(path, [2; 10]).expect("written");
    assert!(store.get(&key(2)).expect("looked up").is_some());
}

/// Damages `clock`, the usage record of one entry, and a value. The usage records of the other entries still
/// determine the order of eviction.
#[test]
fn corrupt_usage_records_lose_no_entries() {
    let damages: [(&str, fn(&Path)); 5] = [
        ("emptied", |path| fs::write(path, "").expect("written")),
        ("cut", |path| {
            let file = File::options().write(true).open(path).expect("opened");
            file.set_len(37).expect("cut");
        }),
        ("rubbish", |path| fs::write(path, vec![0x5a; 20_000]).expect("written")),
        ("deleted", |path| fs::remove_file(path).expect("removed")),
        ("directory", |path| {
            fs::remove_file(path).and_then(|()| fs::create_dir(path)).expect("made");
        }),
    ];
    for (name, damage) in damages {
        for reopen in [false, true] {
            let (_directory, root) = scratch();
            let mut store = open(&root, 3 * MEGABYTE);
            store.set_value(&key(1), b"a").expect("set");
            (0..3).for_each(|number| drop(put(&store, number)));
            assert!(store.get(&key(0)).expect("looked up").is_some());
            let usage = root.join("entries").join(key(2).to_string()).join("usage");
            for path in [root.join("clock"), usage, root.join("values").join(key(1).to_string())] {
                damage(&path);
            }
            if reopen {
                drop(store);
                store = open(&root, 3 * MEGABYTE);
            }
            drop(put(&store, 3));
            let size = store.size().expect("known");
            assert_eq!(size, 3 * MEGABYTE as u64, "{name}, reopened {reopen}");
            // The entry whose usage record is damaged counts as the oldest.
            assert_eq!(existing_entries(&store, 0..4), [0, 1, 3], "{name}, reopened {reopen}");
            drop(put(&store, 4));
            assert_eq!(existing_entries(&store, 0..5), [0, 3, 4], "{name}, reopened {reopen}");
            assert_eq!(store.value(&key(1)), None, "{name}, reopened {reopen}");
            store.set_value(&key(1), b"b").expect("set");
            assert_eq!(store.value(&key(1)).as_deref(), Some(&b"b"[..]), "{name}, {reopen}");
        }
    }
}

/// Older versions stored the order of use in SQLite, and set the modification time of an entry's lock at each use.
/// Their entries have the same format.
#[test]
fn migrates_caches_with_sqlite_index() {
    let (_directory, root) = scratch();
    let store = open(&root, 3 * MEGABYTE);
    for (number, seconds) in [(0, 300), (1, 100), (2, 200)] {
        drop(put(&store, number));
        let name = key(number).to_string();
        fs::remove_file(root.join("entries").join(&name).join("usage")).expect("removed");
        let lock = File::options().write(true).open(root.join("locks").join(name + ".use"));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        lock.and_then(|lock| lock.set_modified(time)).expect("set");
    }
    fs::remove_file(root.join("clock")).expect("removed");
    fs::remove_dir(root.join("values")).expect("removed");
    for name in ["index.db", "index.db-wal", "index.db-shm"] {
        fs::write(root.join(name), "SQLite format 3").expect("written");
    }
    // A killed process left this content.
    fs::write(root.join("lock"), "\0").expect("written");
    let store = open(&root, 3 * MEGABYTE);
    let listed: Vec<u64> =
        store.list().expect("listed").iter().map(|entry| entry.used / 1000).collect();
    assert_eq!(listed, [300, 200, 100]);
    drop(put(&store, 3));
    assert_eq!(existing_entries(&store, 0..4), [0, 2, 3]);
    let mut names: Vec<_> =
        fs::read_dir(&root).expect("read").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let expected =
        ["clock", "coremill-store", "entries", "lock", "locks", "staging", "trash", "values"];
    assert_eq!(names, expected);
}

#[test]
fn recovers_from_deleted_cache_directory() {
    let (_directory, root) = scratch();
    let store = open(&root, 3 * MEGABYTE);
    drop(put(&store, 1));
    fs::remove_dir_all(&root).expect("removed");
    assert!(store.get(&key(1)).expect("looked up").is_none());
    drop(put(&store, 1));
    assert!(store.get(&key(1)).expect("looked up").is_some());
}

#[test]
fn open_removes_leftovers_of_killed_processes() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    drop(put(&store, 1));
    let half = root.join("staging").join(key(2).to_string()).join("content");
    fs::create_dir_all(&half).expect("made");
    fs::write(half.join("half"), "a half").expect("written");
    fs::write(root.join("staging/other"), "rubbish").expect("written");
    fs::create_dir_all(root.join("trash/old/deep")).expect("made");
    fs::write(root.join("locks").join(key(2).to_string() + ".make"), "").expect("written");
    drop(open(&root, 10 * MEGABYTE));
    for (directory, left) in [("staging", 0), ("trash", 0), ("locks", 1), ("entries", 1)] {
        let found = fs::read_dir(root.join(directory)).expect("read").count();
        assert_eq!(found, left, "{directory}");
    }
}

#[test]
fn concurrent_threads_build_each_entry_once() {
    let (_directory, root) = scratch();
    let made = AtomicUsize::new(0);
    let stores: Vec<Store> = (0..8).map(|_| open(&root, 10 * MEGABYTE)).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| {
                for number in 0..5 {
                    let make = |place: &Path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        fs::write(place.join("data"), number.to_string())
                    };
                    let entry = store.get_or_insert(&key(number), "model", "m", make);
                    let data = entry.expect("stored").path().join("data");
                    assert_eq!(fs::read_to_string(data).expect("read"), number.to_string());
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 5);
}

#[test]
fn values_persist_until_overwritten_or_purged() {
    let (_directory, root) = scratch();
    let store = open(&root, MEGABYTE);
    store.set_value(&key(1), b"\0\xff").expect("set");
    store.set_value(&key(2), b"").expect("set");
    assert_eq!(store.value(&key(1)).as_deref(), Some(&b"\0\xff"[..]));
    assert_eq!(store.value(&key(2)).as_deref(), Some(&b""[..]));
    assert_eq!(store.value(&key(3)), None);
    store.set_value(&key(1), b"longer than before").expect("set");
    store.set_value(&key(1), b"new").expect("set");
    assert_eq!(open(&root, MEGABYTE).value(&key(1)).as_deref(), Some(&b"new"[..]));
    let error = store.set_value(&key(4), &vec![0; MEGABYTE + 1]).expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Input);
    store.purge().expect("purged");
    assert_eq!(store.value(&key(1)), None);
}

#[test]
fn open_prunes_oldest_values() {
    let (_directory, root) = scratch();
    let values = root.join("values");
    drop(open(&root, MEGABYTE));
    for number in 0..10_001_usize {
        fs::write(values.join(key(number).to_string()), "").expect("written");
    }
    let old = File::options().write(true).open(values.join(key(7).to_string())).expect("opened");
    old.set_modified(SystemTime::now() - Duration::from_secs(1000)).expect("set");
    drop(open(&root, MEGABYTE));
    assert_eq!(fs::read_dir(&values).expect("read").count(), 5001);
    assert!(!values.join(key(7).to_string()).exists(), "the oldest value must be removed");
}

/// Runs a test with a time limit of one minute.
#[cfg(unix)]
fn within_a_minute(name: &str, act: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        act();
        sender.send(())
    });
    let done = receiver.recv_timeout(Duration::from_secs(60));
    assert_ne!(done, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "{name} blocks");
    thread.join().expect("no panic in the test").expect("received");
}

/// Files of a cache. `true` marks files that the cache replaces if they are not regular files; for the others, the
/// cache returns an error.
#[cfg(unix)]
fn paths(root: &Path) -> Vec<(PathBuf, bool)> {
    let name = key(1).to_string();
    let entry = root.join("entries").join(&name);
    vec![
        (root.join("lock"), false),
        (root.join("coremill-store"), false),
        (root.join("locks").join(name.clone() + ".use"), true),
        (root.join("clock"), true),
        (root.join("values").join(name), true),
        (entry.join("manifest.json"), true),
        (entry.join("usage"), true),
        (entry.join("content/model.mil"), true),
    ]
}

#[cfg(unix)]
fn use_everything(root: &Path) -> Result<(), coremill_cache::Error> {
    let store = Store::open(root, &Options { limit: 3 << 20, durable: false })?;
    store.list()?;
    store.size()?;
    store.value(&key(1));
    store.get(&key(1))?;
    store.set_value(&key(1), b"new")?;
    drop(put(&store, 1));
    drop(put(&store, 2));
    store.verify()?;
    store.prune(0)?;
    store.purge().map(|_| ())
}

/// A link in a cache refers to a user's file, which must not change; a pipe must not block.
#[cfg(unix)]
#[test]
fn does_not_follow_symlinks_or_block_on_fifos() {
    for index in 0..8 {
        for pipe in [false, true] {
            let (directory, root) = scratch();
            let store = open(&root, 3 * MEGABYTE);
            drop(put(&store, 1));
            store.set_value(&key(1), b"old").expect("set");
            drop(store);
            let (path, is_replaced) = paths(&root).swap_remove(index);
            let victim = directory.path().join("victim");
            fs::write(&victim, "precious").expect("written");
            fs::remove_file(&path).expect("removed");
            if pipe {
                let made = std::process::Command::new("mkfifo").arg(&path).status();
                assert!(made.expect("mkfifo is installed").success());
            } else {
                std::os::unix::fs::symlink(&victim, &path).expect("linked");
            }
            let name = format!("{}, pipe {pipe}", path.display());
            let shown = name.clone();
            within_a_minute(&name, move || match use_everything(&root) {
                Ok(()) => assert!(is_replaced, "{shown}: no error"),
                Err(error) => {
                    assert!(!is_replaced, "{shown}: {error}");
                    let message = error.to_string();
                    assert!(message.ends_with("it is not a regular file"), "{shown}: {message}");
                }
            });
            assert_eq!(fs::read_to_string(&victim).expect("read"), "precious", "{name}");
        }
    }
}

/// Files are deleted in these directories, so a link to another directory is rejected.
#[cfg(unix)]
#[test]
fn does_not_delete_through_symlinked_directories() {
    for name in ["entries", "staging", "locks", "trash", "values"] {
        let (directory, root) = scratch();
        let store = open(&root, 3 * MEGABYTE);
        drop(put(&store, 1));
        drop(store);
        let victim = directory.path().join("victim");
        fs::create_dir(&victim).expect("made");
        fs::write(victim.join(key(1).to_string()), "precious").expect("written");
        fs::remove_dir_all(root.join(name)).expect("removed");
        std::os::unix::fs::symlink(&victim, root.join(name)).expect("linked");
        let error = use_everything(&root).expect_err("refused").to_string();
        assert!(error.ends_with("it is not a directory"), "{name}: {error}");
        let found = fs::read_to_string(victim.join(key(1).to_string())).expect("read");
        assert_eq!(found, "precious", "{name}");
    }
    // An entry that is a symbolic link counts as damaged; only the link is removed.
    let (directory, root) = scratch();
    drop(put(&open(&root, 3 * MEGABYTE), 1));
    let entry = root.join("entries").join(key(1).to_string());
    let victim = directory.path().join("victim");
    fs::rename(&entry, &victim).expect("moved");
    std::os::unix::fs::symlink(&victim, &entry).expect("linked");
    use_everything(&root).expect("passes");
    assert!(victim.join("content/model.mil").exists());
}

#[test]
fn rejects_directories_that_are_not_caches() {
    let (_directory, root) = scratch();
    fs::create_dir_all(root.join("trash")).expect("made");
    fs::write(root.join("trash/precious"), "precious").expect("written");
    let error = Store::open(&root, &Options::default()).map(|_| ()).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Input);
    assert!(error.to_string().ends_with("is not a cache of coremill"), "{error}");
    assert!(root.join("trash/precious").exists());
    assert_eq!(fs::read_dir(&root).expect("read").count(), 1);
    fs::write(root.join("coremill-store"), "2\n").expect("written");
    let error = Store::open(&root, &Options::default()).map(|_| ()).expect_err("refused");
    assert!(error.to_string().ends_with("belongs to another version of coremill"), "{error}");
}
