#include <dcp/dcp.h>

#include <archive.h>
#include <isa-l.h>
#include <jansson.h>
#include <xxhash.h>
#include <zstd.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define DOTS(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

const char *dcp_version(void)
{
    return DOTS(DCP_VERSION_MAJOR, DCP_VERSION_MINOR, DCP_VERSION_PATCH);
}

const char *dcp_version_libraries(void)
{
    return "jansson " JANSSON_VERSION "\n"
           "xxHash " DOTS(
               XXH_VERSION_MAJOR, XXH_VERSION_MINOR,
               XXH_VERSION_RELEASE) "\n"
                                    "zstd " ZSTD_VERSION_STRING "\n"
                                    "ISA-L " DOTS(
                                        ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION,
                                        ISAL_PATCH_VERSION) "\n"
                                                            "libarchive"
                                                            " " ARCHIVE_VERSION_ONLY_STRING
                                                            "\n";
}
