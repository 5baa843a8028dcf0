/* A preloaded library that records each sync of a program, also those of SQLite.

   BAD_DISK_RECORD names a folder on the same file system. At each sync, a file's content or a folder's names in
   JSON become a new file in `records`, and the file `log` gets the line "INODE NAME", or "INODE/ NAME" for a folder,
   since a file may get the inode of a folder that is gone. A link to each file, `links/INODE`, keeps others from
   getting the inode of a file. Files outside the folder BAD_DISK_ROOT are not recorded. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_names(const char *folder, FILE *file) {
    DIR *entries = opendir(folder);
    const char *separator = "{";
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        fprintf(file, "%s\"%s\": [%lu, %s]", separator, entry->d_name, (unsigned long)entry->d_ino,
                entry->d_type == DT_DIR ? "true" : "false");
        separator = ", ";
    }
    fprintf(file, *separator == '{' ? "{}" : "}");
    if (entries) closedir(entries);
}

static void write_content(int descriptor, const char *opened, FILE *file) {
    /* Closing another descriptor of a database would drop this process's locks on it. */
    char buffer[65536];
    int is_own = pread(descriptor, buffer, 1, 0) < 0, source = is_own ? open(opened, O_RDONLY) : descriptor;
    ssize_t count;
    for (off_t offset = 0; (count = pread(source, buffer, sizeof buffer, offset)) > 0; offset += count)
        fwrite(buffer, 1, count, file);
    if (is_own && source >= 0) close(source);
}

static void record(int descriptor) {
    static int number;
    const char *root = getenv("BAD_DISK_ROOT"), *own = getenv("BAD_DISK_RECORD");
    char opened[64], path[PATH_MAX], temporary[PATH_MAX + 64], target[PATH_MAX + 64];
    struct stat facts;
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(opened, path, sizeof path - 1);
    if (!root || !own || length < 0 || fstat(descriptor, &facts)) return;
    path[length] = 0;
    if (strncmp(path, root, strlen(root))) return;
    int is_folder = S_ISDIR(facts.st_mode);
    unsigned long inode = facts.st_ino;
    char name[64];
    snprintf(name, sizeof name, "%d-%d", getpid(), __sync_fetch_and_add(&number, 1));
    snprintf(temporary, sizeof temporary, "%s/records/%s", own, name);
    snprintf(target, sizeof target, "%s/links/%lu", own, inode);
    if (!is_folder && link(path, target)) errno = 0; /* recorded before, or deleted since */
    FILE *file = fopen(temporary, "wb");
    if (!file) return;
    if (is_folder)
        write_names(path, file);
    else
        write_content(descriptor, opened, file);
    fclose(file);
    snprintf(target, sizeof target, "%s/log", own);
    if ((file = fopen(target, "a"))) {
        fprintf(file, "%lu%s %s\n", inode, is_folder ? "/" : "", name);
        fclose(file);
    }
}

static int sync_and_record(const char *name, int descriptor) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = sync(descriptor), number = errno;
    if (!result) record(descriptor);
    errno = number;
    return result;
}

int fsync(int descriptor) { return sync_and_record("fsync", descriptor); }

int fdatasync(int descriptor) { return sync_and_record("fdatasync", descriptor); }
