# Writes files as byte arrays into a header, so that the program carries them along:
#
#   cmake -DFILES=a.html,b.css -DHEADER=pages.h -P Embed.cmake
#
# a.html becomes `static const unsigned char a_html[]`.

string(REPLACE "," ";" files "${FILES}")
set(text "")
foreach(file ${files})
	get_filename_component(name ${file} NAME)
	string(MAKE_C_IDENTIFIER ${name} name)
	file(READ ${file} bytes HEX)
	string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
	string(APPEND text "static const unsigned char ${name}[] = {${bytes}};\n")
endforeach()
file(WRITE ${HEADER} "${text}")
