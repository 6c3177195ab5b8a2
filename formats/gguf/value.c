/* value: the typed values behind keys, as JSON and back. */
#include "base/bytes.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/pickle/py.h"
#include "gguf.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    BOOL,
    STRING,
    ARRAY,
    U64,
    I64,
    F64,
    N_TYPES
};

static const struct {
    const char *name;
    size_t size_bytes; /* at least */
} types[N_TYPES] = {
    [U8] = { "u8", 1 },        [I8] = { "i8", 1 },     [U16] = { "u16", 2 },
    [I16] = { "i16", 2 },      [U32] = { "u32", 4 },   [I32] = { "i32", 4 },
    [F32] = { "f32", 4 },      [BOOL] = { "bool", 1 }, [STRING] = { "string", 8 },
    [ARRAY] = { "array", 12 }, [U64] = { "u64", 8 },   [I64] = { "i64", 8 },
    [F64] = { "f64", 8 },
};

/* -- reading ------------------------------------------------------------------------- */

static float as_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static double as_double(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static json_t *real_to_json(double value)
{
    return isfinite(value) ? json_real(value)
                           : json_string(isnan(value) ? "nan"
                                         : value > 0  ? "inf"
                                                      : "-inf");
}

static json_t *u64_to_json(uint64_t value)
{
    char text[24];

    if (value <= INT64_MAX)
        return json_integer((json_int_t)value);
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *text_to_json(const char *text, size_t n)
{
    return dcp_str_utf8_ok(text, n) ? json_stringn(text, n)
                                    : dcp_py_hex(DCP_PY_BYTES, text, n);
}

/* A value without its type; not of an array. */
static int take_plain(struct dcp_gguf_cursor *cursor, enum type type, const char *key,
                      json_t **out, struct dcp_error *err)
{
    const unsigned char *p;
    const char *text;
    size_t n;

    *out = NULL;
    if (type == STRING) {
        DCP_TRY(
            dcp_gguf_take_text(cursor, DCP_GGUF_MAX_STRING_BYTES, key, &text, &n, err));
        *out = text_to_json(text, n);
        return *out ? DCP_OK : dcp_error_memory(err, "a value");
    }
    DCP_TRY(dcp_gguf_take(cursor, types[type].size_bytes, &p, err));
    switch (type) {
    case U8:
        *out = json_integer(p[0]);
        break;
    case I8:
        *out = json_integer((int8_t)p[0]);
        break;
    case U16:
        *out = json_integer(dcp_le16(p));
        break;
    case I16:
        *out = json_integer((int16_t)dcp_le16(p));
        break;
    case U32:
        *out = json_integer(dcp_le32(p));
        break;
    case I32:
        *out = json_integer((int32_t)dcp_le32(p));
        break;
    case F32:
        *out = real_to_json((double)as_float(dcp_le32(p)));
        break;
    case BOOL:
        if (p[0] > 1)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s': key '%s' is neither true nor false",
                                 cursor->in->shown, DCP_SHOWN(key));
        *out = json_boolean(p[0]);
        break;
    case U64:
        *out = u64_to_json(dcp_le64(p));
        break;
    case I64:
        *out = json_integer((json_int_t)dcp_le64(p));
        break;
    default:
        *out = real_to_json(as_double(dcp_le64(p)));
    }
    return *out ? DCP_OK : dcp_error_memory(err, "a value");
}

static int take_type(struct dcp_gguf_cursor *cursor, const char *key, enum type *out,
                     struct dcp_error *err)
{
    const unsigned char *p;

    DCP_TRY(dcp_gguf_take(cursor, 4, &p, err));
    if (dcp_le32(p) >= N_TYPES)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s': key '%s' has a value of type %u, which is not known",
                             cursor->in->shown, DCP_SHOWN(key), (unsigned)dcp_le32(p));
    *out = (enum type)dcp_le32(p);
    return DCP_OK;
}

/* {"[u32]": […]} */
static int take_array(struct dcp_gguf_cursor *cursor, const char *key, json_t **out,
                      struct dcp_error *err)
{
    char name[16];
    const unsigned char *p;
    enum type type = U8;
    uint64_t n = 0;

    DCP_TRY(take_type(cursor, key, &type, err));
    if (type == ARRAY)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s': key '%s' is an array of arrays", cursor->in->shown,
                             DCP_SHOWN(key));
    DCP_TRY(dcp_gguf_take(cursor, 8, &p, err));
    n = dcp_le64(p);
    if (n > dcp_gguf_left(cursor) / types[type].size_bytes)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s': the array of key '%s' is longer than the file",
                             cursor->in->shown, DCP_SHOWN(key));
    if (n > cursor->values_left)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has arrays of over %u values in its header",
                             cursor->in->shown, DCP_GGUF_MAX_VALUES);
    cursor->values_left -= n;
    snprintf(name, sizeof name, "[%s]", types[type].name);
    json_t *array = json_array(), *item;
    *out = json_pack("{s:o}", name, array);
    if (!*out)
        return dcp_error_memory(err, "a value");
    for (uint64_t i = 0; i < n; i++) {
        DCP_TRY(take_plain(cursor, type, key, &item, err));
        if (json_array_append_new(array, item))
            return dcp_error_memory(err, "a value");
    }
    return DCP_OK;
}

int dcp_gguf_take_value(struct dcp_gguf_cursor *cursor, const char *key, json_t **out,
                        struct dcp_error *err)
{
    enum type type = U8;
    int rc = take_type(cursor, key, &type, err);

    *out = NULL;
    if (!rc)
        rc = type == ARRAY ? take_array(cursor, key, out, err)
                           : take_plain(cursor, type, key, out, err);
    if (!rc && type != ARRAY && type != STRING && type != BOOL &&
        !(*out = json_pack("{s:o}", types[type].name, *out)))
        rc = dcp_error_memory(err, "a value");
    if (rc) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

/* -- writing ------------------------------------------------------------------------- */

static bool parse_u64(const char *text, uint64_t *out)
{
    *out = 0;
    for (; *text; text++)
        if (*text < '0' || *text > '9' || !dcp_mul_u64(*out, 10, out) ||
            !dcp_add_u64(*out, (uint64_t)(*text - '0'), out))
            return false;
    return true;
}

static bool real_of(const json_t *value, double *out)
{
    const char *text = json_string_value(value);

    *out = text && !strcmp(text, "nan") ? (double)NAN : json_number_value(value);
    if (text && strstr(text, "inf"))
        *out = text[0] == '-' ? -(double)INFINITY : (double)INFINITY;
    return text || json_is_number(value);
}

static bool add_real(struct dcp_buf *buf, enum type type, const json_t *value)
{
    uint64_t bits64;
    uint32_t bits32;
    double real;

    if (!real_of(value, &real))
        return false;
    float narrow = (float)real;
    memcpy(&bits32, &narrow, sizeof bits32);
    memcpy(&bits64, &real, sizeof bits64);
    if (type == F32)
        dcp_buf_add_le32(buf, bits32);
    else
        dcp_buf_add_le64(buf, bits64);
    return true;
}

static bool add_integer(struct dcp_buf *buf, enum type type, const json_t *value)
{
    const char *text = json_string_value(value);
    uint64_t bits = (uint64_t)json_integer_value(value);

    if (!json_is_integer(value) && !(type == U64 && text && parse_u64(text, &bits)))
        return false;
    if (types[type].size_bytes == 1)
        dcp_buf_add_u8(buf, (uint8_t)bits);
    else if (types[type].size_bytes == 2)
        dcp_buf_add_le16(buf, (uint16_t)bits);
    else if (types[type].size_bytes == 4)
        dcp_buf_add_le32(buf, (uint32_t)bits);
    else
        dcp_buf_add_le64(buf, bits);
    return true;
}

static bool add_text(struct dcp_buf *buf, const json_t *value)
{
    const char *hex = json_string_value(json_object_get(value, DCP_PY_BYTES));
    size_t n = hex ? strlen(hex) / 2 : json_string_length(value);

    if (!hex && !json_is_string(value))
        return false;
    dcp_buf_add_le64(buf, n);
    if (!hex) {
        dcp_buf_add(buf, json_string_value(value), n);
        return true;
    }
    DCP_CLEANUP_FREE unsigned char *bytes = dcp_mem_calloc(n, 1);
    bool ok = bytes && dcp_hex_parse_all(hex, bytes);
    if (ok)
        dcp_buf_add(buf, bytes, n);
    return ok;
}

static bool add_plain(struct dcp_buf *buf, enum type type, const json_t *value)
{
    switch (type) {
    case STRING:
        return add_text(buf, value);
    case BOOL:
        dcp_buf_add_u8(buf, json_is_true(value));
        return json_is_boolean(value);
    case F32:
    case F64:
        return add_real(buf, type, value);
    default:
        return add_integer(buf, type, value);
    }
}

/* The type that a tag names, or N_TYPES. */
static enum type type_named(const char *name, size_t n)
{
    int type = 0;

    while (type < N_TYPES && (type == ARRAY || strlen(types[type].name) != n ||
                              memcmp(types[type].name, name, n) != 0))
        type++;
    return (enum type)type;
}

static bool add_array(struct dcp_buf *buf, enum type type, const json_t *array)
{
    bool ok = json_is_array(array);

    dcp_buf_add_le32(buf, ARRAY);
    dcp_buf_add_le32(buf, (uint32_t)type);
    dcp_buf_add_le64(buf, json_array_size(array));
    for (size_t i = 0; i < json_array_size(array) && ok; i++)
        ok = add_plain(buf, type, json_array_get(array, i));
    return ok;
}

int dcp_gguf_add_value(struct dcp_buf *buf, const char *key, const json_t *value,
                       struct dcp_error *err)
{
    const char *tag = json_object_iter_key(json_object_iter((json_t *)(uintptr_t)value));
    bool plain = !tag || !strcmp(tag, DCP_PY_BYTES), ok = false;
    size_t n = tag ? strlen(tag) : 0;

    if (plain) {
        enum type type = json_is_boolean(value) ? BOOL : STRING;
        dcp_buf_add_le32(buf, (uint32_t)type);
        ok = add_plain(buf, type, value);
    } else if (n > 2 && tag[0] == '[' && tag[n - 1] == ']') {
        enum type type = type_named(tag + 1, n - 2);
        ok = type != N_TYPES && add_array(buf, type, json_object_get(value, tag));
    } else {
        enum type type = type_named(tag, n);
        dcp_buf_add_le32(buf, (uint32_t)type);
        ok = type != N_TYPES && add_plain(buf, type, json_object_get(value, tag));
    }
    return ok ? DCP_OK
              : dcp_error_set(err, DCP_E_CORRUPT,
                              "object '%s': key '%s' has no value of a known type",
                              DCP_GGUF_METADATA, DCP_SHOWN(key));
}

/* -- common types -------------------------------------------------------------------- */

json_t *dcp_gguf_u32(int64_t number)
{
    return json_pack("{s:I}", types[U32].name, (json_int_t)number);
}

json_t *dcp_gguf_f32(double number)
{
    return json_pack("{s:f}", types[F32].name, (double)(float)number);
}

bool dcp_gguf_get_int(const json_t *metadata, const char *key, int64_t *out)
{
    json_t *value = json_object_get(metadata, key), *number;
    const char *tag;

    *out = 0;
    json_object_foreach(value, tag, number)
    {
        *out = json_integer_value(number);
        return json_is_integer(number);
    }
    return false;
}

/* The shortest decimal number of up to nine digits that is this float. */
static double shortest(float value)
{
    for (int digits = 1; digits <= 9 && value != 0 && isfinite(value); digits++) {
        int exponent = digits - 1 - (int)floor(log10(fabs((double)value)));
        double scale = pow(10, abs(exponent));
        double round = exponent >= 0 ? rint((double)value * scale) / scale
                                     : rint((double)value / scale) * scale;
        if ((float)round == value)
            return round;
    }
    return (double)value;
}

bool dcp_gguf_get_real(const json_t *metadata, const char *key, double *out)
{
    const json_t *value = json_object_get(metadata, key);
    const json_t *narrow = json_object_get(value, types[F32].name);
    const json_t *wide = json_object_get(value, types[F64].name);

    *out = narrow ? shortest((float)json_number_value(narrow)) : json_number_value(wide);
    return json_is_number(narrow ? narrow : wide);
}
