#include <dcp/dcp.h>

#include <archive.h>
#include <isa-l.h>
#include <jansson.h>
#include <openssl/opensslv.h>
#include <xxhash.h>
#include <zstd.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define DOTS(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

#define DCP DOTS(DCP_VERSION_MAJOR, DCP_VERSION_MINOR, DCP_VERSION_PATCH)
#define XXHASH DOTS(XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE)
#define ISAL DOTS(ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION, ISAL_PATCH_VERSION)

const char *dcp_version(void)
{
    return DCP;
}

const char *dcp_version_libraries(void)
{
    return "jansson " JANSSON_VERSION "\n"
           "xxHash " XXHASH "\n"
           "zstd " ZSTD_VERSION_STRING "\n"
           "ISA-L " ISAL "\n"
           "libarchive " ARCHIVE_VERSION_ONLY_STRING "\n"
           "OpenSSL " OPENSSL_VERSION_STR "\n";
}
