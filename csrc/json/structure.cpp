#include "json/structure.h"

namespace fastbert::json {

Structure structure_of(std::string_view text) {
    Structure found;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char character = text[i];
        if (in_string) {
            if (character == '\\')
                ++i;
            else
                in_string = character != '"';
        } else if (character == '"') {
            in_string = true;
        } else if (character == '[' || character == '{') {
            ++found.containers;
        } else if (character == ',') {
            ++found.commas;
        }
    }
    return found;
}

}  // namespace fastbert::json
